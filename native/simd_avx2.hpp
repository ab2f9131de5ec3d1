// AVX2 with FMA and F16C; simd.hpp says what each function means.
#pragma once

#include <immintrin.h>

namespace headwise::HEADWISE_ISA {

struct Vector {
    __m256 raw;
};
struct Mask {
    __m256 raw;  // all bits of a lane or none
};
inline constexpr int lanes = 8;
inline constexpr bool has_pairs = false;

HEADWISE_INLINE __m256i first_bits(std::int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
HEADWISE_INLINE Mask first(std::int64_t n) { return {_mm256_castsi256_ps(first_bits(n))}; }

HEADWISE_INLINE Vector zero() { return {_mm256_setzero_ps()}; }
HEADWISE_INLINE Vector broadcast(float x) { return {_mm256_set1_ps(x)}; }
HEADWISE_INLINE Vector count_up() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)}; }

HEADWISE_INLINE Vector widen(BFloat16, __m128i bits) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
HEADWISE_INLINE Vector widen(Half, __m128i bits) { return {_mm256_cvtph_ps(bits)}; }

HEADWISE_INLINE Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
HEADWISE_INLINE Vector load_first(const float* p, std::int64_t n) { return {_mm256_maskload_ps(p, first_bits(n))}; }
template <class T>
HEADWISE_INLINE Vector load(const T* p) {
    return widen(T{}, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <class T>
HEADWISE_INLINE Vector load_first(const T* p, std::int64_t n) {
    T some[lanes] = {};  // AVX2 has no masks for 16 bits
    for (std::int64_t i = 0; i < n; ++i) some[i] = p[i];
    return load(some);
}

HEADWISE_INLINE __m128i narrow(BFloat16, Vector v) {
    const __m256i bits = _mm256_castps_si256(v.raw);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.raw, v.raw, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}
HEADWISE_INLINE __m128i narrow(Half, Vector v) {
    return _mm256_cvtps_ph(v.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

HEADWISE_INLINE void store(float* p, Vector v) { _mm256_storeu_ps(p, v.raw); }
HEADWISE_INLINE void store_first(float* p, Vector v, std::int64_t n) {
    _mm256_maskstore_ps(p, first_bits(n), v.raw);
}
template <class T>
HEADWISE_INLINE void store(T* p, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(T{}, v));
}
template <class T>
HEADWISE_INLINE void store_first(T* p, Vector v, std::int64_t n) {
    T some[lanes];
    store(some, v);
    for (std::int64_t i = 0; i < n; ++i) p[i] = some[i];
}

HEADWISE_INLINE Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator/(Vector a, Vector b) { return {_mm256_div_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector fused(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.raw, b.raw, c.raw)}; }
HEADWISE_INLINE Vector maximum(Vector a, Vector b) { return {_mm256_max_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector minimum(Vector a, Vector b) { return {_mm256_min_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector nearest(Vector v) {
    return {_mm256_round_ps(v.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADWISE_INLINE Vector times_power(Vector v, Vector n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.raw), _mm256_set1_epi32(127));
    return {_mm256_mul_ps(v.raw, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}
HEADWISE_INLINE Vector absolute(Vector v) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v.raw)}; }
HEADWISE_INLINE Vector copy_sign(Vector v, Vector sign) {
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(_mm256_andnot_ps(bit, v.raw), _mm256_and_ps(bit, sign.raw))};
}

HEADWISE_INLINE Mask less(Vector a, Vector b) { return {_mm256_cmp_ps(a.raw, b.raw, _CMP_LT_OQ)}; }
HEADWISE_INLINE Mask equal(Vector a, Vector b) { return {_mm256_cmp_ps(a.raw, b.raw, _CMP_EQ_OQ)}; }
HEADWISE_INLINE Mask both(Mask m, Mask n) { return {_mm256_and_ps(m.raw, n.raw)}; }
HEADWISE_INLINE bool any(Mask m) { return _mm256_movemask_ps(m.raw) != 0; }
HEADWISE_INLINE Vector select(Mask m, Vector yes, Vector no) { return {_mm256_blendv_ps(no.raw, yes.raw, m.raw)}; }
HEADWISE_INLINE Mask bytes_set(const std::uint8_t* p, std::int64_t n) {
    std::uint8_t some[lanes] = {};
    for (std::int64_t i = 0; i < n; ++i) some[i] = p[i];
    const __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(some)));
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(words, _mm256_setzero_si256()))};
}

HEADWISE_INLINE float sum(Vector v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v.raw), _mm256_extractf128_ps(v.raw, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
HEADWISE_INLINE float largest(Vector v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v.raw), _mm256_extractf128_ps(v.raw, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// Each step adds the halves of two vectors and puts them side by side: within 128 bits first, then across.
HEADWISE_INLINE __m256 add_halves(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}
HEADWISE_INLINE __m256 add_quarters(__m256 a, __m256 b) {
    const __m256d c = _mm256_castps_pd(a), d = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)), _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
}
HEADWISE_INLINE Vector transposed_sums(const Vector (&rows)[lanes]) {
    const __m256 low = add_quarters(add_halves(rows[0].raw, rows[1].raw), add_halves(rows[2].raw, rows[3].raw));
    const __m256 high = add_quarters(add_halves(rows[4].raw, rows[5].raw), add_halves(rows[6].raw, rows[7].raw));
    return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31))};
}

}  // namespace headwise::HEADWISE_ISA
