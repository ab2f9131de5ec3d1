// From dot products to weights, one row of one tile at a time: scale, soft-cap, bias, ALiBi, what is hidden, and the
// online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).
#pragma once

#include "decode_scores.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

struct Tile {
    std::int64_t begin, count;
};

template <class T>
Vector bias_lanes(const std::byte* at_key_0, std::int64_t stride, std::int64_t key, std::int64_t n) {
    const T* bias = reinterpret_cast<const T*>(at_key_0) + key * stride;
    if (stride == 1) return n >= lanes ? load(bias) : load_first(bias, n);
    T some[lanes] = {};
    for (std::int64_t i = 0; i < n && i < lanes; ++i) some[i] = bias[i * stride];
    return load(some);
}

HEADWISE_INLINE Vector bias_of(const Call& call, const DecodeRow& row, std::int64_t key, std::int64_t n) {
    const std::int64_t stride = call.bias.stride[3];
    if (call.bias_type == Type::f32) return bias_lanes<float>(row.bias, stride, key, n);
    if (call.bias_type == Type::bf16) return bias_lanes<BFloat16>(row.bias, stride, key, n);
    return bias_lanes<Half>(row.bias, stride, key, n);
}

// What is added to the scores of keys that may be seen. `key` is the first of the lanes, of which n count.
HEADWISE_INLINE Vector altered(const Call& call, const DecodeRow& row, Vector scores, std::int64_t key,
                               std::int64_t n) {
    if (call.softcap != 0.0f) {
        scores = broadcast(call.softcap) * tangent(scores / broadcast(call.softcap));
    }
    if (row.bias != nullptr) scores = scores + bias_of(call, row, key, n);
    if (call.slopes != nullptr) {
        const Vector behind = broadcast(static_cast<float>(row.position - key)) - count_up();
        scores = scores - broadcast(row.slope) * absolute(behind);
    }
    return scores;
}

// The final scores of one row, in place; -infinity where hidden and after the last key. Gives the largest. Where keys
// are codes, `key_scales` turns their dot products into those of the keys.
inline float finish_scores(const Call& call, const DecodeRow& row, Tile tile, const std::uint8_t* visible,
                           const float* key_scales, float* scores) {
    const Vector hidden = broadcast(-infinity), scale = broadcast(call.scale);
    const bool is_altered = call.softcap != 0.0f || row.bias != nullptr || call.slopes != nullptr;
    Vector best = hidden;
    for (std::int64_t j = 0; j < tile.count; j += lanes) {
        const std::int64_t n = tile.count - j;
        Vector s = load(scores + j) * scale;
        if (key_scales != nullptr) s = s * load(key_scales + j);
        if (is_altered) s = altered(call, row, s, tile.begin + j, n);
        if (n < lanes) s = select(first(n), s, hidden);
        if (visible != nullptr) s = select(bytes_set(visible + j, smaller(n, std::int64_t{lanes})), s, hidden);
        store(scores + j, s);
        best = maximum(best, s);
    }
    return largest(best);
}

// Turns the scores into exponentials relative to `from`, in place; gives their sum. Where values are codes, their
// scales go into the weights that stay.
inline float exponentiate(float* scores, std::int64_t count, float from, const float* value_scales) {
    Vector total = zero();
    const Vector base = broadcast(from);
    for (std::int64_t j = 0; j < count; j += lanes) {
        const Vector weight = exponential(load(scores + j) - base);
        store(scores + j, value_scales == nullptr ? weight : weight * load(value_scales + j));
        total = total + weight;
    }
    return sum(total);
}

inline void rescale(float* sums, std::int64_t width, float factor) {
    const Vector by = broadcast(factor);
    for (std::int64_t at = 0; at < width; at += lanes) store(sums + at, load(sums + at) * by);
}

// Takes the scores of one tile into the running softmax of a row and leaves its weights in their place. What has been
// summed so far is scaled down where the tile brings a larger score.
inline void take_in(float tile_largest, float* scores, std::int64_t count, const float* value_scales,
                    float& running_largest, float& total, float* sums, std::int64_t width) {
    if (tile_largest > running_largest) {
        if (total != 0.0f) {
            float factor[lanes];
            store(factor, exponential(broadcast(running_largest - tile_largest)));
            total *= factor[0];
            rescale(sums, width, factor[0]);
        }
        running_largest = tile_largest;
    }
    // Nothing but -infinity so far: any number serves as the base, so that no infinities are subtracted.
    total += exponentiate(scores, count, running_largest == -infinity ? 0.0f : running_largest, value_scales);
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
