// Numbers of the types that kernels read, to and from double, bit by bit: nothing here is shared with the kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "arguments.hpp"

namespace headwise::driver {

inline std::size_t bytes_of(Element element) {
    switch (element) {
        case Element::f32: return sizeof(float);
        case Element::bf16:
        case Element::f16: return sizeof(std::uint16_t);
        case Element::i64: return sizeof(std::int64_t);
        case Element::i32: return sizeof(std::int32_t);
        default: return 1;
    }
}

// What one rounding to the type may cost, relative.
inline double rounding_of(Element element) {
    return element == Element::f32 ? 0x1p-24 : element == Element::bf16 ? 0x1p-8 : 0x1p-11;
}

inline double half_of(std::uint16_t bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * fraction * 0x1p-24;
    return sign * (1024 + fraction) * std::ldexp(1.0, exponent - 25);
}

inline double read_number(Element element, const std::byte* from) {
    if (element == Element::f32) {
        float number;
        std::memcpy(&number, from, sizeof(number));
        return number;
    }
    std::uint16_t bits;
    std::memcpy(&bits, from, sizeof(bits));
    if (element == Element::f16) return half_of(bits);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Cut off and not rounded, which serves for random numbers. Of float16 those below 2^-14 become 0.
inline void write_number(Element element, double number, std::byte* to) {
    const auto single = static_cast<float>(number);
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(single);
    if (element == Element::f32) {
        std::memcpy(to, &single, sizeof(single));
        return;
    }
    std::uint32_t narrow = bits >> 16;
    if (element == Element::f16) {
        const std::uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
        const std::uint32_t special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
        narrow = sign | (size >= 0x7f800000u ? special : size < 0x38800000u ? 0u : (size - 0x38000000u) >> 13);
    }
    const auto stored = static_cast<std::uint16_t>(narrow);
    std::memcpy(to, &stored, sizeof(stored));
}

}  // namespace headwise::driver
