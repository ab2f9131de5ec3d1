// The loops in which prefill spends its time: queries times keys, exponentials, weights times values.
#pragma once

#include "prefill_pack.hpp"

namespace headwise::HEADWISE_ISA {

// sums[row][v] += left[row][d] * right[d][v] for d of `products`; left has a stride per row and one per accumulation.
template <class Mode, int vectors>
HEADWISE_INLINE void multiply(const typename Mode::Element* left, std::int64_t row_stride, std::int64_t step,
                              const typename Mode::Element* right, std::int64_t products,
                              Vector (&sums)[strip][vectors]) {
    for (std::int64_t d = 0; d < products; d += Mode::depth) {
        typename Mode::Operand across[vectors];
        for (int v = 0; v < vectors; ++v) across[v] = Mode::read(right + v * lanes * Mode::depth);
        for (int row = 0; row < strip; ++row) {
            const auto one = Mode::repeat(left + row * row_stride);
            for (int v = 0; v < vectors; ++v) sums[row][v] = Mode::accumulate(sums[row][v], one, across[v]);
        }
        left += step;
        right += vectors * lanes * Mode::depth;
    }
}

// Scaled scores [key, lane] of the keys of a tile from `keys` on, and the largest of each lane.
template <class Mode, int vectors>
static void score_keys(const typename Mode::Element* keys, const typename Mode::Element* queries, std::int64_t width,
                       std::int64_t count, float scale, float* scores, Vector (&largest)[vectors]) {
    for (int v = 0; v < vectors; ++v) largest[v] = broadcast(-infinity);
    for (std::int64_t j = 0; j < count; j += strip) {
        Vector sums[strip][vectors];
        for (int row = 0; row < strip; ++row)
            for (int v = 0; v < vectors; ++v) sums[row][v] = zero();
        multiply<Mode>(keys + j * width, width, Mode::depth, queries, width, sums);
        for (int row = 0; row < strip; ++row)
            for (int v = 0; v < vectors; ++v) {
                const Vector score = sums[row][v] * broadcast(scale);
                largest[v] = maximum(score, largest[v]);  // not where the score is NaN
                store(scores + ((j + row) * vectors + v) * lanes, score);
            }
    }
}

// Scores to weights e^(score - reference) in place: float32 [key, lane], or pairs of bfloat16 [key / 2, lane, 2].
// `exact` sums the weights strip by strip, since long sums of float32 lose more; where they are rounded for the products,
// `total` sums what enters those.
template <class Mode, int vectors>
static void weigh_keys(std::int64_t count, float* scores, const Vector (&reference)[vectors],
                       Vector (&total)[vectors], Vector (&exact)[vectors]) {
    for (std::int64_t begin = 0; begin < count; begin += strip) {
        Vector sum[vectors];
        for (int v = 0; v < vectors; ++v) sum[v] = zero();
        for (std::int64_t j = begin; j < begin + strip; j += Mode::depth) {
            float* from = scores + j * vectors * lanes;
            for (int v = 0; v < vectors; ++v) {
                const Vector weight = exponential_below_one(load(from + v * lanes) - reference[v]);
                if constexpr (Mode::depth == 1) {
                    sum[v] = sum[v] + weight;
                    store(from + v * lanes, weight);
                } else {
                    const Vector odd = exponential_below_one(load(from + (vectors + v) * lanes) - reference[v]);
                    const auto pairs = Mode::interleave(weight, odd);
                    sum[v] = sum[v] + (weight + odd);
                    total[v] = Mode::accumulate(total[v], pairs, Mode::ones());
                    auto* to = reinterpret_cast<typename Mode::Element*>(scores) + j * vectors * lanes;
                    Mode::write(to + v * lanes * Mode::depth, pairs);
                }
            }
        }
        for (int v = 0; v < vectors; ++v) exact[v] = exact[v] + sum[v];
    }
}

// outputs[column][lane] = outputs * shrink + sum over keys of weight * value.
template <class Mode, int vectors>
static void add_values(const typename Mode::Element* values, std::int64_t columns, const float* weights,
                       std::int64_t count, const Vector (&shrink)[vectors], float* outputs) {
    const auto* right = reinterpret_cast<const typename Mode::Element*>(weights);
    for (std::int64_t column = 0; column < columns; column += strip) {
        Vector sums[strip][vectors];
        for (int row = 0; row < strip; ++row)
            for (int v = 0; v < vectors; ++v) sums[row][v] = zero();
        multiply<Mode>(values + column * tile_keys, Mode::depth, strip * Mode::depth, right, count, sums);
        for (int row = 0; row < strip; ++row)
            for (int v = 0; v < vectors; ++v) {
                float* to = outputs + ((column + row) * vectors + v) * lanes;
                store(to, fused(load(to), shrink[v], sums[row][v]));
            }
    }
}

}  // namespace headwise::HEADWISE_ISA
