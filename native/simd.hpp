// Vectors of float32 for kernels that are compiled once per instruction set.
//
// The build defines HEADWISE_ISA (the namespace that all of it lies in, so that no two instruction sets share a symbol)
// and one of HEADWISE_SIMD_AVX512, HEADWISE_SIMD_AVX2, HEADWISE_SIMD_NEON; none of them: plain arrays. With AVX-512
// HEADWISE_SIMD_BF16 adds products of pairs of bfloat16 (has_pairs).
//
// Each simd_*.hpp offers, for Vector with `lanes` float32 and Mask with one truth value per lane:
//   zero() broadcast(x) count_up() = 0, 1, 2, ...
//   load(p) store(p, v)                     p points to float, BFloat16 or Half; nothing need be aligned
//   load_first(p, n) store_first(p, v, n)   the first n lanes (0 to lanes), the rest is 0 / left alone
//   + - * /   fused(a, b, c) = a * b + c    rounded once where the instruction set has it
//   maximum(a, b) minimum(a, b)             b where one of the two is NaN
//   nearest(v)                              whole numbers, halves to even; |v| < 2^22
//   times_power(v, n)                       v * 2^n for whole n from -126 to 127
//   absolute(v) copy_sign(v, sign)
//   less(a, b) equal(a, b) first(n) bytes_set(p, n) both(m, n) any(m) select(m, yes, no)
//   sum(v) largest(v)
//   transposed_sums(rows)                   of Vector rows[lanes]: lane i is the sum over rows[i]
// Here come the functions that are built of these.
#pragma once

#include <limits>

#include "attention.hpp"

#if !defined(HEADWISE_ISA)
#error "HEADWISE_ISA must name the instruction set that this file is compiled for"
#endif

#if defined(_MSC_VER)
#define HEADWISE_INLINE __forceinline
#else
#define HEADWISE_INLINE [[gnu::always_inline]] inline
#endif

// In front of a loop of constant length over registers: arrays of vectors stay in registers only if it disappears.
#if defined(__clang__)
#define HEADWISE_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define HEADWISE_UNROLL _Pragma("GCC unroll 32")
#else
#define HEADWISE_UNROLL
#endif

#if defined(HEADWISE_SIMD_AVX512)
#include "simd_avx512.hpp"
#elif defined(HEADWISE_SIMD_AVX2)
#include "simd_avx2.hpp"
#elif defined(HEADWISE_SIMD_NEON)
#include "simd_neon.hpp"
#else
#include "simd_plain.hpp"
#endif

namespace headwise::HEADWISE_ISA {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

// e^v to about one unit in the last place; 0 below -87.3 (where results would be subnormal), infinity above 88.7; NaN
// stays NaN. e^v = 2^n e^r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 P(r), P of least largest error, fitted for this.
HEADWISE_INLINE Vector exponential(Vector v) {
    const Vector clamped = minimum(broadcast(89.0f), maximum(broadcast(-88.0f), v));
    const Vector n = nearest(clamped * broadcast(1.44269504f));
    // ln 2 in two parts, of which n times the first is exact.
    Vector r = fused(n, broadcast(-0.693359375f), clamped);
    r = fused(n, broadcast(2.12194440e-4f), r);
    Vector p = broadcast(0.0013933652f);
    p = fused(p, r, broadcast(0.0083631815f));
    p = fused(p, r, broadcast(0.0416664649f));
    p = fused(p, r, broadcast(0.1666657697f));
    p = fused(p, r, broadcast(0.5000000013f));
    const Vector power = fused(p * r, r, r) + broadcast(1.0f);
    // In two steps, since n = 128 has no float32 of its own.
    const Vector half = nearest(n * broadcast(0.5f));
    const Vector result = times_power(times_power(power, half), n - half);
    return select(less(v, broadcast(-87.3f)), zero(), result);
}

// To about two units in the last place: near 0 an odd polynomial, elsewhere (1 - e^-2|v|) / (1 + e^-2|v|).
HEADWISE_INLINE Vector tangent(Vector v) {  // hyperbolic
    const Vector square = v * v, size = absolute(v);
    Vector p = broadcast(-0.006104948f);
    p = fused(p, square, broadcast(0.0210036412f));
    p = fused(p, square, broadcast(-0.0538524975f));
    p = fused(p, square, broadcast(0.1333278226f));
    p = fused(p, square, broadcast(-0.333333291f));
    const Vector small = fused(p * square, v, v);
    const Vector e = exponential(size * broadcast(-2.0f));
    const Vector large = copy_sign((broadcast(1.0f) - e) / (broadcast(1.0f) + e), v);
    return select(less(size, broadcast(0.625f)), small, large);
}

HEADWISE_INLINE float smaller(float a, float b) { return a < b ? a : b; }
HEADWISE_INLINE float larger(float a, float b) { return a > b ? a : b; }
HEADWISE_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
HEADWISE_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

}  // namespace headwise::HEADWISE_ISA
