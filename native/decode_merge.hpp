// Partial results of all items of a row, merged exactly by their log-sum-exp.
#pragma once

#include "decode_scores.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

// How much each slot counts for one row, and the whole denominator.
struct Shares {
    float weight[most_slots];
    float largest = -infinity, total = 0.0f;
    bool empty = true;  // no key, or only scores of -infinity
};

inline float exponential_of(float x) {
    float result[lanes];
    store(result, exponential(broadcast(x)));
    return result[0];
}

inline Shares shares_of(const Call& call, const float* partials, DecodeSlots slots, std::int64_t h, std::int64_t row) {
    Shares shares;
    const std::int64_t rows = group_rows(call), size = partial_floats(call);
    for (std::int64_t s = 0; s < slots.count; ++s) {
        const float* partial = partials + (slots.first + s) * size;
        if (partial[rows + row] == 0.0f) continue;
        shares.empty = false;
        shares.largest = larger(shares.largest, partial[row]);
    }
    if (shares.empty) return shares;
    if (call.sinks != nullptr) {
        shares.largest = larger(shares.largest, call.sinks[h]);
        shares.total = exponential_of(call.sinks[h] - shares.largest);
    }
    for (std::int64_t s = 0; s < slots.count; ++s) {
        const float* partial = partials + (slots.first + s) * size;
        const bool counts = partial[rows + row] != 0.0f;
        shares.weight[s] = counts ? exponential_of(partial[row] - shares.largest) : 0.0f;
        if (counts) shares.total += partial[rows + row] * shares.weight[s];
    }
    return shares;
}

template <class T>
void write_row(const Call& call, const float* partials, DecodeSlots slots, const Shares& shares, std::int64_t row,
               T* output) {
    const std::int64_t width = call.value_width, size = partial_floats(call);
    const float* sums = partials + slots.first * size + 2 * group_rows(call) + row * padded(width);
    const Vector total = broadcast(shares.total);
    for (std::int64_t at = 0; at < width; at += lanes) {
        Vector merged = zero();
        for (std::int64_t s = 0; s < slots.count && !shares.empty; ++s) {
            merged = fused(broadcast(shares.weight[s]), load(sums + s * size + at), merged);
        }
        if (!shares.empty) merged = merged / total;
        if (width - at >= lanes) store(output + at, merged);
        else store_first(output + at, merged, width - at);
    }
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
