// Vectors to integer codes with one scale each, as headwise.cache.quantization describes and computes them: the same
// bits, written where a cache keeps them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "attention.hpp"

namespace headwise {

struct QuantizeCall {
    std::int64_t batch = 0, heads = 0, tokens = 0, width = 0;  // B, G, T, D
    Type type = Type::f32;                      // of the vectors
    const std::byte* vectors = nullptr;         // [B, G, T, D]
    std::byte* codes = nullptr;                 // [B, G, T, D], or [B, G, T, (D + 1) / 2] for 4 bits
    float* scales = nullptr;                    // [B, G, T]
    // In bytes, but for the scales, per sequence, head and token; that of the last axis is one number or one code.
    std::array<std::int64_t, 3> vector_stride{}, code_stride{}, scale_stride{};
    int bits = 8;
    int threads = 1;
};

// What each instruction set offers for it: all tokens of one head of one sequence.
using QuantizeKernel = void (*)(const QuantizeCall& call, std::int64_t b, std::int64_t g);

void quantize(const QuantizeCall& call, QuantizeKernel kernel);

}  // namespace headwise
