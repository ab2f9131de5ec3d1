// Plain arrays, for processors without any of the other instruction sets; compilers make what vectors they can of it.
#pragma once

#include <bit>
#include <cmath>

namespace headwise::HEADWISE_ISA {

inline constexpr int lanes = 4;
struct Vector {
    float raw[lanes];
};
struct Mask {
    bool raw[lanes];
};
inline constexpr bool has_pairs = false;

template <class Function>
HEADWISE_INLINE Vector each_lane(const Function& function) {
    Vector result;
    for (int i = 0; i < lanes; ++i) result.raw[i] = function(i);
    return result;
}
template <class Function>
HEADWISE_INLINE Mask mask_lanes(const Function& function) {
    Mask result;
    for (int i = 0; i < lanes; ++i) result.raw[i] = function(i);
    return result;
}

HEADWISE_INLINE float widen(float x) { return x; }
HEADWISE_INLINE float widen(BFloat16 x) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
HEADWISE_INLINE float widen(Half x) {
    const std::uint32_t bits = x.bits, sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
    if (rest >= 0x0f800000u) return std::bit_cast<float>(sign | rest | 0x7f800000u);  // infinity, NaN
    // The exponent of float32 is 112 larger; the product rights subnormal halves as well.
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(std::bit_cast<float>(rest) * 0x1p112f) | sign);
}

HEADWISE_INLINE void narrow(float x, float& to) { to = x; }
HEADWISE_INLINE void narrow(float x, BFloat16& to) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    to.bits = static_cast<std::uint16_t>(x != x ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
HEADWISE_INLINE void narrow(float x, Half& to) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), sign = (bits >> 16) & 0x8000u;
    const std::uint32_t size = bits & 0x7fffffffu;
    std::uint32_t half = 0;
    if (size > 0x7f800000u) {
        half = 0x7e00u;  // NaN
    } else if (size >= 0x477ff000u) {
        half = 0x7c00u;  // 65520 and more round to infinity
    } else if (size < 0x38800000u) {
        // Subnormal: next to 0.5 one unit of float32 is the smallest half, so that the addition rounds.
        half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    } else {
        half = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    }
    to.bits = static_cast<std::uint16_t>(half | sign);
}

HEADWISE_INLINE Vector broadcast(float x) {
    return each_lane([&](int) { return x; });
}
HEADWISE_INLINE Vector zero() { return broadcast(0.0f); }
HEADWISE_INLINE Vector count_up() { return {{0, 1, 2, 3}}; }

template <class T>
HEADWISE_INLINE Vector load(const T* p) {
    return each_lane([&](int i) { return widen(p[i]); });
}
template <class T>
HEADWISE_INLINE Vector load_first(const T* p, std::int64_t n) {
    return each_lane([&](int i) { return i < n ? widen(p[i]) : 0.0f; });
}
template <class T>
HEADWISE_INLINE void store_first(T* p, Vector v, std::int64_t n) {
    for (int i = 0; i < n; ++i) narrow(v.raw[i], p[i]);
}
template <class T>
HEADWISE_INLINE void store(T* p, Vector v) {
    for (int i = 0; i < lanes; ++i) narrow(v.raw[i], p[i]);
}

HEADWISE_INLINE Vector operator+(Vector a, Vector b) {
    return each_lane([&](int i) { return a.raw[i] + b.raw[i]; });
}
HEADWISE_INLINE Vector operator-(Vector a, Vector b) {
    return each_lane([&](int i) { return a.raw[i] - b.raw[i]; });
}
HEADWISE_INLINE Vector operator*(Vector a, Vector b) {
    return each_lane([&](int i) { return a.raw[i] * b.raw[i]; });
}
HEADWISE_INLINE Vector operator/(Vector a, Vector b) {
    return each_lane([&](int i) { return a.raw[i] / b.raw[i]; });
}
HEADWISE_INLINE Vector fused(Vector a, Vector b, Vector c) {
    return each_lane([&](int i) { return a.raw[i] * b.raw[i] + c.raw[i]; });
}
HEADWISE_INLINE Vector maximum(Vector a, Vector b) {
    return each_lane([&](int i) { return a.raw[i] > b.raw[i] ? a.raw[i] : b.raw[i]; });
}
HEADWISE_INLINE Vector minimum(Vector a, Vector b) {
    return each_lane([&](int i) { return a.raw[i] < b.raw[i] ? a.raw[i] : b.raw[i]; });
}
HEADWISE_INLINE Vector nearest(Vector v) {
    // Next to 1.5 * 2^23 float32 holds whole numbers only. The compiler may not simplify it without -ffast-math.
    return each_lane([&](int i) { return (v.raw[i] + 12582912.0f) - 12582912.0f; });
}
HEADWISE_INLINE Vector times_power(Vector v, Vector n) {
    return each_lane([&](int i) {
        // The lowest bits of n + 1.5 * 2^23 are those of the whole number n; NaN gives any power, and stays NaN in v.
        const std::uint32_t whole = std::bit_cast<std::uint32_t>(n.raw[i] + 12582912.0f);
        return v.raw[i] * std::bit_cast<float>((whole + 127u) << 23);
    });
}
HEADWISE_INLINE Vector absolute(Vector v) {
    return each_lane([&](int i) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v.raw[i]) & 0x7fffffffu); });
}
HEADWISE_INLINE Vector copy_sign(Vector v, Vector sign) {
    return each_lane([&](int i) {
        const std::uint32_t bit = std::bit_cast<std::uint32_t>(sign.raw[i]) & 0x80000000u;
        return std::bit_cast<float>((std::bit_cast<std::uint32_t>(v.raw[i]) & 0x7fffffffu) | bit);
    });
}

HEADWISE_INLINE Mask first(std::int64_t n) {
    return mask_lanes([&](int i) { return i < n; });
}
HEADWISE_INLINE Mask less(Vector a, Vector b) {
    return mask_lanes([&](int i) { return a.raw[i] < b.raw[i]; });
}
HEADWISE_INLINE Mask equal(Vector a, Vector b) {
    return mask_lanes([&](int i) { return a.raw[i] == b.raw[i]; });
}
HEADWISE_INLINE Mask both(Mask m, Mask n) {
    return mask_lanes([&](int i) { return m.raw[i] && n.raw[i]; });
}
HEADWISE_INLINE bool any(Mask m) { return m.raw[0] || m.raw[1] || m.raw[2] || m.raw[3]; }
HEADWISE_INLINE Vector select(Mask m, Vector yes, Vector no) {
    return each_lane([&](int i) { return m.raw[i] ? yes.raw[i] : no.raw[i]; });
}
HEADWISE_INLINE Mask bytes_set(const std::uint8_t* p, std::int64_t n) {
    return mask_lanes([&](int i) { return i < n && p[i] != 0; });
}

HEADWISE_INLINE float sum(Vector v) { return (v.raw[0] + v.raw[2]) + (v.raw[1] + v.raw[3]); }
HEADWISE_INLINE float largest(Vector v) {
    float result = v.raw[0];
    for (int i = 1; i < lanes; ++i) result = result > v.raw[i] ? result : v.raw[i];
    return result;
}
HEADWISE_INLINE Vector transposed_sums(const Vector (&rows)[lanes]) {
    return each_lane([&](int i) { return sum(rows[i]); });
}

}  // namespace headwise::HEADWISE_ISA
