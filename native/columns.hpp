// Two vectors at a time from a row in memory, in whatever order of the columns is cheapest: what is computed lane by
// lane does not mind, as long as all that takes part was loaded alike. For bfloat16 one vector holds the even columns
// and the other the odd ones, since 32 of them widen by one shift and one mask.
#pragma once

#include "simd.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

struct Columns {
    Vector a, b;
};
inline constexpr std::int64_t column_unit = 2 * lanes;

template <class T>
inline constexpr bool even_and_odd = false;

template <class T>
HEADWISE_INLINE Columns load_columns(const T* p) {
    return {load(p), load(p + lanes)};
}

template <class T>
HEADWISE_INLINE Columns load_columns_first(const T* p, std::int64_t n) {
    if (n <= lanes) return {load_first(p, n), zero()};
    return {load(p), load_first(p + lanes, n - lanes)};
}

#if defined(HEADWISE_SIMD_AVX512)
template <>
inline constexpr bool even_and_odd<BFloat16> = true;

HEADWISE_INLINE Columns split_columns(__m512i bits) {
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))},
            {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))}};
}
HEADWISE_INLINE Columns load_columns(const BFloat16* p) { return split_columns(_mm512_loadu_si512(p)); }
HEADWISE_INLINE Columns load_columns_first(const BFloat16* p, std::int64_t n) {
    return split_columns(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << n) - 1u), p));
}
#elif defined(HEADWISE_SIMD_AVX2)
template <>
inline constexpr bool even_and_odd<BFloat16> = true;

HEADWISE_INLINE Columns load_columns(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))}};
}
HEADWISE_INLINE Columns load_columns_first(const BFloat16* p, std::int64_t n) {
    BFloat16 some[column_unit] = {};
    for (std::int64_t i = 0; i < n; ++i) some[i] = p[i];
    return load_columns(some);
}
#endif

// A row of sums in the order of load_columns<T>, put into the order of the columns, in place.
template <class T>
HEADWISE_INLINE void order_columns(float* row, std::int64_t width) {
    if constexpr (even_and_odd<T>) {
        for (std::int64_t at = 0; at < width; at += column_unit) {
            float apart[column_unit];
            store(apart, load(row + at));
            store(apart + lanes, load(row + at + lanes));
            for (std::int64_t i = 0; i < lanes; ++i) {
                row[at + 2 * i] = apart[i];
                row[at + 2 * i + 1] = apart[lanes + i];
            }
        }
    }
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
