// One call of attention on a CPU, as every kernel reads it: sizes, pointers and strides, no ownership.
//
// Axes: B batch, H query heads, G KV heads, R = H / G, L queries, S keys, D width, Dv width of the values. Query head h
// reads KV head h / R. The meaning is that of headwise.attention.attention: scores are scaled, soft-capped, biased and
// masked, in that order; the sink joins the denominator only.
//
// Whoever fills in a Call has checked it: sizes are not negative, H is a multiple of G, what is not nullptr may be read
// at every index, strides of the last axis of query, key, value and output are 1, and positions and windows are small
// enough to be added (position_limit).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headwise {

enum class Type : std::uint8_t { f32, bf16, f16 };

// What lies in memory; simd.hpp turns it into float32.
struct BFloat16 {
    std::uint16_t bits;
};
struct Half {
    std::uint16_t bits;
};

// No position, length or window is larger, so that sums of a few of them do not overflow.
inline constexpr std::int64_t position_limit = std::int64_t{1} << 60;

using Strides = std::array<std::int64_t, 4>;  // in elements, per axis; 0 repeats, negative runs backwards

template <class Pointer>
struct Strided {
    Pointer data = nullptr;
    Strides stride{};
};

struct Statistics;  // statistics.hpp

struct Call {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0, value_width = 0;
    Type type = Type::f32;          // of query, key, value and output
    Strided<const void*> query;     // [B, H, L, D]
    Strided<const void*> key;       // [B, G, S, D]
    Strided<const void*> value;     // [B, G, S, Dv]
    Strided<void*> output;          // [B, H, L, Dv]
    float* lse = nullptr;           // [B, H, L] contiguous, in nats; nullptr: not asked for

    const std::int64_t* offsets = nullptr;      // [B]: where the first query stands; key j stands at j
    const std::int64_t* key_lengths = nullptr;  // [B], 0 to S; nullptr: all keys
    const std::int64_t* left = nullptr;         // [H]: how many keys before its own position a query sees; -1: all
    const std::int64_t* right = nullptr;        // [H]: the same behind it; -1: all, 0: causal order
    Strided<const std::uint8_t*> mask;          // [B, H, L, S], not 0: may attend; data nullptr: none
    Strided<const void*> bias;                  // [B, H, L, S], data nullptr: none
    Type bias_type = Type::f32;
    const float* sinks = nullptr;               // [H] or nullptr
    const float* slopes = nullptr;              // [H] per sequence or nullptr: ALiBi
    std::int64_t slopes_batch_stride = 0;       // in elements; 0: the same slopes for every sequence
    float scale = 1.0f;
    float softcap = 0.0f;                       // 0: none
    int threads = 1;                            // at most so many; results do not depend on it
    const Statistics* statistics = nullptr;     // what prefill is to read off the weights; nullptr: nothing
};

// Keys begin to end - 1; empty where end <= begin.
struct KeyRange {
    std::int64_t begin = 0, end = 0;
};

// Static, as everything in headers that several instruction sets include: the linker must not give a function that was
// compiled for one of them to another.
[[maybe_unused]] static std::int64_t group_size(const Call& call) { return call.heads / call.kv_heads; }  // R

[[maybe_unused]] static std::int64_t key_length(const Call& call, std::int64_t b) {
    return call.key_lengths == nullptr ? call.keys : call.key_lengths[b];
}

// The keys that the window and the key length of one query of one head leave; a mask may hide some of them.
[[maybe_unused]] static KeyRange visible_keys(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t position = call.offsets[b] + i, left = call.left[h], right = call.right[h];
    KeyRange range{0, key_length(call, b)};
    if (left >= 0 && position - left > range.begin) range.begin = position - left;
    if (right >= 0 && position + right + 1 < range.end) range.end = position + right + 1;
    return range;
}

// The first element of one row: index b, h, i of a tensor with elements of type T.
template <class T, class Pointer>
static const T* row_of(const Strided<Pointer>& tensor, std::int64_t b, std::int64_t h, std::int64_t i) {
    const Strides& stride = tensor.stride;
    return static_cast<const T*>(tensor.data) + b * stride[0] + h * stride[1] + i * stride[2];
}

}  // namespace headwise
