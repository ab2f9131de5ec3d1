// Squares of lanes x lanes float32 turned over their diagonal: rows in memory become lanes and the other way round.
#pragma once

#include "simd.hpp"

namespace headwise::HEADWISE_ISA {

#if defined(HEADWISE_SIMD_AVX512)

HEADWISE_INLINE __m512 low_doubles(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
HEADWISE_INLINE __m512 high_doubles(__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

// 4 x 4 squares within each 128 bits.
HEADWISE_INLINE void transpose_fours(const Vector* rows, __m512* turned) {
    const __m512 a = _mm512_unpacklo_ps(rows[0].raw, rows[1].raw), b = _mm512_unpackhi_ps(rows[0].raw, rows[1].raw);
    const __m512 c = _mm512_unpacklo_ps(rows[2].raw, rows[3].raw), d = _mm512_unpackhi_ps(rows[2].raw, rows[3].raw);
    turned[0] = low_doubles(a, c);
    turned[1] = high_doubles(a, c);
    turned[2] = low_doubles(b, d);
    turned[3] = high_doubles(b, d);
}

HEADWISE_INLINE void transpose(Vector (&rows)[lanes]) {
    __m512 fours[4][4];  // fours[i][j]: column j of each 128 bits of rows 4 i to 4 i + 3
    for (int i = 0; i < 4; ++i) transpose_fours(rows + 4 * i, fours[i]);
    for (int j = 0; j < 4; ++j) {
        const __m512 even_top = _mm512_shuffle_f32x4(fours[0][j], fours[1][j], 0x88);
        const __m512 odd_top = _mm512_shuffle_f32x4(fours[0][j], fours[1][j], 0xdd);
        const __m512 even_end = _mm512_shuffle_f32x4(fours[2][j], fours[3][j], 0x88);
        const __m512 odd_end = _mm512_shuffle_f32x4(fours[2][j], fours[3][j], 0xdd);
        rows[j].raw = _mm512_shuffle_f32x4(even_top, even_end, 0x88);
        rows[4 + j].raw = _mm512_shuffle_f32x4(odd_top, odd_end, 0x88);
        rows[8 + j].raw = _mm512_shuffle_f32x4(even_top, even_end, 0xdd);
        rows[12 + j].raw = _mm512_shuffle_f32x4(odd_top, odd_end, 0xdd);
    }
}

#elif defined(HEADWISE_SIMD_AVX2)

// 4 x 4 squares within each 128 bits.
HEADWISE_INLINE void transpose_fours(const Vector* rows, __m256* turned) {
    const __m256 a = _mm256_unpacklo_ps(rows[0].raw, rows[1].raw), b = _mm256_unpackhi_ps(rows[0].raw, rows[1].raw);
    const __m256 c = _mm256_unpacklo_ps(rows[2].raw, rows[3].raw), d = _mm256_unpackhi_ps(rows[2].raw, rows[3].raw);
    turned[0] = _mm256_shuffle_ps(a, c, 0x44);
    turned[1] = _mm256_shuffle_ps(a, c, 0xee);
    turned[2] = _mm256_shuffle_ps(b, d, 0x44);
    turned[3] = _mm256_shuffle_ps(b, d, 0xee);
}

HEADWISE_INLINE void transpose(Vector (&rows)[lanes]) {
    __m256 top[4], end[4];
    transpose_fours(rows, top);
    transpose_fours(rows + 4, end);
    for (int j = 0; j < 4; ++j) {
        rows[j].raw = _mm256_permute2f128_ps(top[j], end[j], 0x20);
        rows[4 + j].raw = _mm256_permute2f128_ps(top[j], end[j], 0x31);
    }
}

#else

HEADWISE_INLINE void transpose(Vector (&rows)[lanes]) {
    float square[lanes][lanes], turned[lanes][lanes];
    for (int i = 0; i < lanes; ++i) store(square[i], rows[i]);
    for (int i = 0; i < lanes; ++i)
        for (int j = 0; j < lanes; ++j) turned[j][i] = square[i][j];
    for (int i = 0; i < lanes; ++i) rows[i] = load(turned[i]);
}

#endif

}  // namespace headwise::HEADWISE_ISA
