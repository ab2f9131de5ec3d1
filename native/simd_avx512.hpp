// AVX-512 (F, BW, DQ, VL), with AVX512_BF16 on request; simd.hpp says what each function means.
#pragma once

#include <immintrin.h>

namespace headwise::HEADWISE_ISA {

struct Vector {
    __m512 raw;
};
struct Mask {
    __mmask16 raw;
};
inline constexpr int lanes = 16;

HEADWISE_INLINE Mask first(std::int64_t n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }

HEADWISE_INLINE Vector zero() { return {_mm512_setzero_ps()}; }
HEADWISE_INLINE Vector broadcast(float x) { return {_mm512_set1_ps(x)}; }
HEADWISE_INLINE Vector count_up() {
    return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

HEADWISE_INLINE Vector widen(BFloat16, __m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
HEADWISE_INLINE Vector widen(Half, __m256i bits) { return {_mm512_cvtph_ps(bits)}; }

HEADWISE_INLINE Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
HEADWISE_INLINE Vector load_first(const float* p, std::int64_t n) { return {_mm512_maskz_loadu_ps(first(n).raw, p)}; }
template <class T>
HEADWISE_INLINE Vector load(const T* p) {
    return widen(T{}, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <class T>
HEADWISE_INLINE Vector load_first(const T* p, std::int64_t n) {
    return widen(T{}, _mm256_maskz_loadu_epi16(first(n).raw, p));
}

HEADWISE_INLINE __m256i narrow(BFloat16, Vector v) {
    const __m512i bits = _mm512_castps_si512(v.raw);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}
HEADWISE_INLINE __m256i narrow(Half, Vector v) {
    return _mm512_cvtps_ph(v.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

HEADWISE_INLINE void store(float* p, Vector v) { _mm512_storeu_ps(p, v.raw); }
HEADWISE_INLINE void store_first(float* p, Vector v, std::int64_t n) {
    _mm512_mask_storeu_ps(p, first(n).raw, v.raw);
}
template <class T>
HEADWISE_INLINE void store(T* p, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(T{}, v));
}
template <class T>
HEADWISE_INLINE void store_first(T* p, Vector v, std::int64_t n) {
    _mm256_mask_storeu_epi16(p, first(n).raw, narrow(T{}, v));
}

HEADWISE_INLINE Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator/(Vector a, Vector b) { return {_mm512_div_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector fused(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.raw, b.raw, c.raw)}; }
HEADWISE_INLINE Vector maximum(Vector a, Vector b) { return {_mm512_max_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector minimum(Vector a, Vector b) { return {_mm512_min_ps(a.raw, b.raw)}; }
HEADWISE_INLINE Vector nearest(Vector v) {
    return {_mm512_roundscale_ps(v.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
HEADWISE_INLINE Vector times_power(Vector v, Vector n) { return {_mm512_scalef_ps(v.raw, n.raw)}; }
HEADWISE_INLINE Vector absolute(Vector v) { return {_mm512_abs_ps(v.raw)}; }
HEADWISE_INLINE Vector copy_sign(Vector v, Vector sign) {
    const __m512 bit = _mm512_set1_ps(-0.0f);
    return {_mm512_or_ps(_mm512_andnot_ps(bit, v.raw), _mm512_and_ps(bit, sign.raw))};
}

HEADWISE_INLINE Mask less(Vector a, Vector b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_LT_OQ)}; }
HEADWISE_INLINE Mask equal(Vector a, Vector b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_EQ_OQ)}; }
HEADWISE_INLINE Mask both(Mask m, Mask n) { return {static_cast<__mmask16>(m.raw & n.raw)}; }
HEADWISE_INLINE bool any(Mask m) { return m.raw != 0; }
HEADWISE_INLINE Vector select(Mask m, Vector yes, Vector no) {
    return {_mm512_mask_blend_ps(m.raw, no.raw, yes.raw)};
}
HEADWISE_INLINE Mask bytes_set(const std::uint8_t* p, std::int64_t n) {
    const __m128i bytes = _mm_maskz_loadu_epi8(first(n).raw, p);
    return {_mm_test_epi8_mask(bytes, bytes)};
}

HEADWISE_INLINE float sum(Vector v) { return _mm512_reduce_add_ps(v.raw); }
HEADWISE_INLINE float largest(Vector v) { return _mm512_reduce_max_ps(v.raw); }

// Each step adds the halves of two vectors and puts them side by side: within 128 bits first, then across.
HEADWISE_INLINE __m512 add_halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
HEADWISE_INLINE __m512 add_quarters(__m512 a, __m512 b) {
    const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}
HEADWISE_INLINE __m512 add_blocks(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
HEADWISE_INLINE Vector transposed_sums(const Vector (&rows)[lanes]) {
    __m512 four[4];
    for (int i = 0; i < 4; ++i) {
        const Vector* of = rows + 4 * i;
        four[i] = add_quarters(add_halves(of[0].raw, of[1].raw), add_halves(of[2].raw, of[3].raw));
    }
    return {add_blocks(add_blocks(four[0], four[1]), add_blocks(four[2], four[3]))};
}

#if defined(HEADWISE_SIMD_BF16)
// 32 bfloat16, two for each lane; dot_pairs adds both products of a lane to it (subnormal products count as 0).
inline constexpr bool has_pairs = true;
struct Pairs {
    __m512bh raw;
};
HEADWISE_INLINE Pairs load_pairs(const BFloat16* p) { return {(__m512bh)_mm512_loadu_si512(p)}; }
HEADWISE_INLINE Pairs load_pairs_first(const BFloat16* p, std::int64_t n) {
    const __mmask32 wanted = static_cast<__mmask32>((std::uint64_t{1} << n) - 1u);
    return {(__m512bh)_mm512_maskz_loadu_epi16(wanted, p)};
}
HEADWISE_INLINE Vector dot_pairs(Vector sum, Pairs a, Pairs b) { return {_mm512_dpbf16_ps(sum.raw, a.raw, b.raw)}; }
HEADWISE_INLINE Pairs pack_pairs(Vector low, Vector high) { return {_mm512_cvtne2ps_pbh(high.raw, low.raw)}; }
#else
inline constexpr bool has_pairs = false;
#endif

}  // namespace headwise::HEADWISE_ISA
