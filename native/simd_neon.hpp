// NEON of 64-bit Arm; simd.hpp says what each function means.
#pragma once

#include <arm_neon.h>

namespace headwise::HEADWISE_ISA {

struct Vector {
    float32x4_t raw;
};
struct Mask {
    uint32x4_t raw;  // all bits of a lane or none
};
inline constexpr int lanes = 4;
inline constexpr bool has_pairs = false;

HEADWISE_INLINE uint32x4_t count_bits() {
    const std::uint32_t counted[lanes] = {0, 1, 2, 3};
    return vld1q_u32(counted);
}
HEADWISE_INLINE Mask first(std::int64_t n) {
    return {vcltq_u32(count_bits(), vdupq_n_u32(static_cast<std::uint32_t>(n)))};
}

HEADWISE_INLINE Vector zero() { return {vdupq_n_f32(0.0f)}; }
HEADWISE_INLINE Vector broadcast(float x) { return {vdupq_n_f32(x)}; }
HEADWISE_INLINE Vector count_up() { return {vcvtq_f32_u32(count_bits())}; }

HEADWISE_INLINE Vector load(const float* p) { return {vld1q_f32(p)}; }
HEADWISE_INLINE Vector load(const BFloat16* p) {
    return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)), 16))};
}
HEADWISE_INLINE Vector load(const Half* p) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p))))};
}
template <class T>
HEADWISE_INLINE Vector load_first(const T* p, std::int64_t n) {
    T some[lanes] = {};  // NEON has no masked loads
    for (std::int64_t i = 0; i < n; ++i) some[i] = p[i];
    return load(some);
}

HEADWISE_INLINE void store(float* p, Vector v) { vst1q_f32(p, v.raw); }
HEADWISE_INLINE void store(BFloat16* p, Vector v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v.raw);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t number = vceqq_f32(v.raw, v.raw);
    const uint32x4_t chosen = vbslq_u32(number, rounded, vdupq_n_u32(0x7fc00000));
    vst1_u16(reinterpret_cast<std::uint16_t*>(p), vshrn_n_u32(chosen, 16));
}
HEADWISE_INLINE void store(Half* p, Vector v) {
    vst1_u16(reinterpret_cast<std::uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(v.raw)));
}
template <class T>
HEADWISE_INLINE void store_first(T* p, Vector v, std::int64_t n) {
    T some[lanes];
    store(some, v);
    for (std::int64_t i = 0; i < n; ++i) p[i] = some[i];
}

HEADWISE_INLINE Mask less(Vector a, Vector b) { return {vcltq_f32(a.raw, b.raw)}; }
HEADWISE_INLINE Mask equal(Vector a, Vector b) { return {vceqq_f32(a.raw, b.raw)}; }
HEADWISE_INLINE Mask both(Mask m, Mask n) { return {vandq_u32(m.raw, n.raw)}; }
HEADWISE_INLINE bool any(Mask m) { return vmaxvq_u32(m.raw) != 0; }
HEADWISE_INLINE Vector select(Mask m, Vector yes, Vector no) { return {vbslq_f32(m.raw, yes.raw, no.raw)}; }
HEADWISE_INLINE Mask bytes_set(const std::uint8_t* p, std::int64_t n) {
    std::uint32_t some[lanes] = {};
    for (std::int64_t i = 0; i < n; ++i) some[i] = p[i];
    return {vcgtq_u32(vld1q_u32(some), vdupq_n_u32(0))};
}

HEADWISE_INLINE Vector operator+(Vector a, Vector b) { return {vaddq_f32(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator-(Vector a, Vector b) { return {vsubq_f32(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator*(Vector a, Vector b) { return {vmulq_f32(a.raw, b.raw)}; }
HEADWISE_INLINE Vector operator/(Vector a, Vector b) { return {vdivq_f32(a.raw, b.raw)}; }
HEADWISE_INLINE Vector fused(Vector a, Vector b, Vector c) { return {vfmaq_f32(c.raw, a.raw, b.raw)}; }
// Comparisons and not vmaxq, which gives NaN where either is NaN.
HEADWISE_INLINE Vector maximum(Vector a, Vector b) { return select(less(b, a), a, b); }
HEADWISE_INLINE Vector minimum(Vector a, Vector b) { return select(less(a, b), a, b); }
HEADWISE_INLINE Vector nearest(Vector v) { return {vrndnq_f32(v.raw)}; }
HEADWISE_INLINE Vector times_power(Vector v, Vector n) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.raw), vdupq_n_s32(127));
    return {vmulq_f32(v.raw, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)))};
}
HEADWISE_INLINE Vector absolute(Vector v) { return {vabsq_f32(v.raw)}; }
HEADWISE_INLINE Vector copy_sign(Vector v, Vector sign) {
    return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.raw, v.raw)};
}

HEADWISE_INLINE float sum(Vector v) { return vaddvq_f32(v.raw); }
HEADWISE_INLINE float largest(Vector v) { return vmaxvq_f32(v.raw); }
HEADWISE_INLINE Vector transposed_sums(const Vector (&rows)[lanes]) {
    return {vpaddq_f32(vpaddq_f32(rows[0].raw, rows[1].raw), vpaddq_f32(rows[2].raw, rows[3].raw))};
}

}  // namespace headwise::HEADWISE_ISA
