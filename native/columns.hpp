// Two vectors at a time from a row in memory, in whatever order of the columns is cheapest: what is computed lane by
// lane does not mind, as long as all that takes part was loaded alike. For bfloat16 one vector holds the even columns
// and the other the odd ones, since 32 of them widen by one shift and one mask; so it is for codes of 4 bits, whose two
// neighbours share a byte.
#pragma once

#include <type_traits>

#include "segments.hpp"
#include "simd.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

struct Columns {
    Vector a, b;
};
inline constexpr std::int64_t column_unit = 2 * lanes;

// Codes beside a query in bfloat16, where dot products take pairs of bfloat16: codes are exact in it.
struct PairedInt8 {
    Int8 code;
};
struct PairedInt4 {
    Int4 codes;
};

template <class T>
inline constexpr bool is_int4 = std::is_same_v<T, Int4> || std::is_same_v<T, PairedInt4>;
template <class T>
inline constexpr bool is_codes = is_int4<T> || std::is_same_v<T, Int8> || std::is_same_v<T, PairedInt8>;

template <class T>
inline constexpr bool even_and_odd = is_int4<T>;

// Where a column lies in a row; of codes of 4 bits only even columns begin a byte.
template <class T>
HEADWISE_INLINE const T* at_column(const T* row, std::int64_t column) {
    if constexpr (is_int4<T>) return row + column / 2;
    else return row + column;
}
template <class T>
constexpr std::int64_t bytes_of_columns(std::int64_t columns) {
    if constexpr (is_int4<T>) return (columns + 1) / 2;
    else return columns * static_cast<std::int64_t>(sizeof(T));
}

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

#if defined(HEADWISE_SIMD_AVX512)
HEADWISE_INLINE Vector widen_codes(__m128i codes) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))}; }
HEADWISE_INLINE Columns load_columns(const Int8* p) {
    const auto* from = reinterpret_cast<const __m128i*>(p);
    return {widen_codes(_mm_loadu_si128(from)), widen_codes(_mm_loadu_si128(from + 1))};
}
HEADWISE_INLINE Columns load_columns_first(const Int8* p, std::int64_t n) {
    const std::uint32_t wanted = static_cast<std::uint32_t>((std::uint64_t{1} << n) - 1u);
    const __m256i codes = _mm256_maskz_loadu_epi8(static_cast<__mmask32>(wanted), p);
    return {widen_codes(_mm256_castsi256_si128(codes)), widen_codes(_mm256_extracti128_si256(codes, 1))};
}
// The permutation looks at the lowest 4 bits of each lane and nowhere else.
HEADWISE_INLINE Columns look_up_codes(__m128i codes) {
    const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i low = _mm512_cvtepu8_epi32(codes);
    return {{_mm512_permutexvar_ps(low, numbers)}, {_mm512_permutexvar_ps(_mm512_srli_epi32(low, 4), numbers)}};
}
HEADWISE_INLINE Columns load_columns(const Int4* p) {
    return look_up_codes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
HEADWISE_INLINE Columns load_columns_first(const Int4* p, std::int64_t n) {
    return look_up_codes(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << ((n + 1) / 2)) - 1u), p));
}
#else
#if defined(HEADWISE_SIMD_AVX2)
HEADWISE_INLINE Vector widen_codes(__m128i codes) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))}; }
HEADWISE_INLINE Columns load_columns(const Int8* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {widen_codes(codes), widen_codes(_mm_srli_si128(codes, 8))};
}
HEADWISE_INLINE Columns load_columns(const Int4* p) {
    const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i four = _mm256_set1_epi32(15), eight = _mm256_set1_epi32(8);
    return {{_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(both, four), eight))},
            {_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(both, 4), eight))}};
}
#else
HEADWISE_INLINE Columns load_columns(const Int8* p) {
    float numbers[column_unit];
    for (std::int64_t i = 0; i < column_unit; ++i) numbers[i] = static_cast<float>(p[i].code);
    return {load(numbers), load(numbers + lanes)};
}
HEADWISE_INLINE Columns load_columns(const Int4* p) {
    float even[lanes], odd[lanes];
    for (std::int64_t i = 0; i < lanes; ++i) {
        even[i] = static_cast<float>(static_cast<int>(p[i].codes & 15u) - 8);
        odd[i] = static_cast<float>(static_cast<int>(p[i].codes >> 4u) - 8);
    }
    return {load(even), load(odd)};
}
#endif
HEADWISE_INLINE Columns load_columns_first(const Int8* p, std::int64_t n) {
    Int8 some[column_unit] = {};
    for (std::int64_t i = 0; i < n; ++i) some[i] = p[i];
    return load_columns(some);
}
HEADWISE_INLINE Columns load_columns_first(const Int4* p, std::int64_t n) {
    Int4 some[lanes] = {};
    for (std::int64_t i = 0; i < (n + 1) / 2; ++i) some[i] = p[i];
    return load_columns(some);
}
#endif

#if defined(HEADWISE_SIMD_BF16)
HEADWISE_INLINE Columns load_columns(const PairedInt8* p) { return load_columns(&p->code); }
HEADWISE_INLINE Columns load_columns(const PairedInt4* p) { return load_columns(&p->codes); }
HEADWISE_INLINE Columns load_columns_first(const PairedInt8* p, std::int64_t n) {
    return load_columns_first(&p->code, n);
}
HEADWISE_INLINE Columns load_columns_first(const PairedInt4* p, std::int64_t n) {
    return load_columns_first(&p->codes, n);
}

using ::headwise::HEADWISE_ISA::load_pairs;
using ::headwise::HEADWISE_ISA::load_pairs_first;

// 32 codes as bfloat16, of 8 bits in the order of the columns.
HEADWISE_INLINE Pairs load_pairs(const PairedInt8* p) {
    const Columns columns = load_columns(p);
    return pack_pairs(columns.a, columns.b);
}
HEADWISE_INLINE Pairs load_pairs_first(const PairedInt8* p, std::int64_t n) {
    const Columns columns = load_columns_first(p, n);
    return pack_pairs(columns.a, columns.b);
}
// Of 4 bits the even columns first, then the odd ones. The permutation looks at the lowest 5 bits of each word, of
// which the fifth may be one of the neighbour's.
HEADWISE_INLINE Pairs look_up_pairs(__m128i codes) {
    const __m512i numbers = _mm512_castsi256_si512(_mm256_setr_epi16(
        static_cast<short>(0xc100), static_cast<short>(0xc0e0), static_cast<short>(0xc0c0), static_cast<short>(0xc0a0),
        static_cast<short>(0xc080), static_cast<short>(0xc040), static_cast<short>(0xc000), static_cast<short>(0xbf80),
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0));
    const __m256i low = _mm256_cvtepu8_epi16(codes);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_srli_epi16(low, 4), 1);
    return {(__m512bh)_mm512_permutexvar_epi16(both, _mm512_inserti64x4(numbers, _mm512_castsi512_si256(numbers), 1))};
}
HEADWISE_INLINE Pairs load_pairs(const PairedInt4* p) {
    return look_up_pairs(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
HEADWISE_INLINE Pairs load_pairs_first(const PairedInt4* p, std::int64_t n) {
    return look_up_pairs(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << ((n + 1) / 2)) - 1u), p));
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
