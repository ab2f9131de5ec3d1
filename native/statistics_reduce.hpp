// One panel against one tile: scores to weights, and what is read off the weights before they are rounded.
#pragma once

#include <algorithm>

#include "prefill_scratch.hpp"
#include "prefill_softmax.hpp"

namespace headwise::HEADWISE_ISA {

// Below it a weight is 0, and 0 times minus infinity would be NaN.
inline constexpr float lowest_logarithm = -128.0f;

// Scores [key, lane] to weights in place. `exact` sums the weights as weigh_keys does, `logarithms` each times its
// logarithm.
template <class Mode, int vectors>
static void weigh_and_sum(std::int64_t count, float* scores, const Vector (&reference)[vectors],
                          Vector (&exact)[vectors], Vector (&logarithms)[vectors]) {
    for (std::int64_t begin = 0; begin < count; begin += strip) {
        for (int v = 0; v < vectors; ++v) {
            Vector sum = zero(), logarithm_sum = zero(), before = zero();
            for (int part = 0; part < strip; ++part) {
                float* at = scores + ((begin + part) * vectors + v) * lanes;
                const Vector logarithm = load(at) - reference[v], weight = exponential_below_one(logarithm);
                logarithm_sum = fused(weight, maximum(broadcast(lowest_logarithm), logarithm), logarithm_sum);
                if (Mode::depth == 1) sum = sum + weight;
                if (Mode::depth == 2 && part % 2 == 1) sum = sum + (before + weight);
                before = weight;
                store(at, weight);
            }
            exact[v] = exact[v] + sum;
            logarithms[v] = logarithms[v] + logarithm_sum;
        }
    }
}

// Weights as the products take them, in place, and their sum.
template <class Mode, int vectors>
static void round_weights(std::int64_t count, float* weights, Vector (&total)[vectors]) {
    if constexpr (Mode::depth == 2) {
        for (std::int64_t j = 0; j < count; j += 2) {
            auto* to = reinterpret_cast<typename Mode::Element*>(weights) + j * vectors * lanes;
            for (int v = 0; v < vectors; ++v) {
                const float* from = weights + (j * vectors + v) * lanes;
                const auto pairs = Mode::interleave(load(from), load(from + vectors * lanes));
                total[v] = Mode::accumulate(total[v], pairs, Mode::ones());
                Mode::write(to + v * lanes * 2, pairs);
            }
        }
    }
}

template <int vectors>
HEADWISE_INLINE void add_sums(const Vector (&sums)[vectors], const Vector (&shrink)[vectors], float* to, float* lost) {
    for (int v = 0; v < vectors; ++v)
        add_kept(load(to + v * lanes), shrink[v], sums[v], to + v * lanes, lost + v * lanes);
}

// Logarithms counted from an old reference are counted from the new one before their weights shrink.
template <int vectors>
static void add_logarithms(const Panel& panel, const Vector (&moved)[vectors], const Vector (&shrink)[vectors],
                           const Vector (&logarithms)[vectors], float* to, float* lost) {
    for (int v = 0; v < vectors; ++v) {
        const std::int64_t at = v * lanes;
        const Vector old = fused(load(panel.exact + at), moved[v], load(to + at));
        add_kept(old, shrink[v], logarithms[v], to + at, lost + at);
    }
}

// How far a panel's old reference lies above the new one, 0 where there is no old one.
template <int vectors>
static void reference_moves(const Panel& panel, const Vector (&largest)[vectors], Vector (&moved)[vectors]) {
    for (int v = 0; v < vectors; ++v) {
        const Vector old = load(panel.largest + v * lanes), now = maximum(old, largest[v]);
        // Where it moves far, all that was summed becomes 0; so far that the product with it stays finite.
        const Vector move = maximum(broadcast(lowest_logarithm), old - now);
        moved[v] = select(equal(old, broadcast(-infinity)), zero(), move);
    }
}

template <int vectors>
static void add_distances(const LaneBounds<vectors>& bounds, Strips strips, const float* weights,
                          const Vector (&shrink)[vectors], float* to, float* lost) {
    Vector sums[vectors];
    for (int v = 0; v < vectors; ++v) sums[v] = zero();
    for (std::int64_t begin = strips.first; begin < strips.last; begin += strip) {
        Vector sum[vectors];
        for (int v = 0; v < vectors; ++v) sum[v] = zero();
        for (std::int64_t j = begin; j < begin + strip; ++j) {
            const Vector key = broadcast(static_cast<float>(j));
            for (int v = 0; v < vectors; ++v) {
                const Vector weight = load(weights + (j * vectors + v) * lanes);
                sum[v] = fused(weight, absolute(bounds.position[v] - key), sum[v]);
            }
        }
        for (int v = 0; v < vectors; ++v) sums[v] = sums[v] + sum[v];
    }
    add_sums(sums, shrink, to, lost);
}

// Where a key, which may be any number, lies in the tile; -1: not in the strips.
HEADWISE_INLINE std::int64_t place_in(Strips strips, std::int64_t tile_begin, std::int64_t key) {
    return key >= tile_begin + strips.first && key < tile_begin + strips.last ? key - tile_begin : -1;
}

// Scores of the single keys that lie in the tile.
static void note_scores(const Panel& panel, std::int64_t tile_begin, Strips strips, const float* scores,
                        const std::int64_t* keys, float* to) {
    for (std::int64_t lane = 0; lane < panel.rows; ++lane) {
        const std::int64_t j = place_in(strips, tile_begin, keys[lane]);
        if (j >= 0) to[lane] = scores[j * panel.width() + lane];
    }
}

// Adds up the weights of keys that have the number of the lane's query; `excluded` are keys that do not count, from
// the start of the tile.
template <bool excludes, int vectors>
static void sum_equal(const float* key_numbers, Strips strips, const float* weights, const float* numbers,
                      const float* excluded, Vector (&sums)[vectors]) {
    Vector number[vectors], without[vectors];
    for (int v = 0; v < vectors; ++v) {
        number[v] = load(numbers + v * lanes);
        without[v] = load(excluded + v * lanes);
    }
    for (std::int64_t begin = strips.first; begin < strips.last; begin += strip) {
        Vector sum[vectors];
        for (int v = 0; v < vectors; ++v) sum[v] = zero();
        for (std::int64_t j = begin; j < begin + strip; ++j) {
            const Vector key = broadcast(key_numbers[j]), index = broadcast(static_cast<float>(j));
            for (int v = 0; v < vectors; ++v) {
                const Vector old = sum[v], grown = old + load(weights + (j * vectors + v) * lanes);
                sum[v] = select(equal(key, number[v]), grown, old);
                if constexpr (excludes) sum[v] = select(equal(index, without[v]), old, sum[v]);
            }
        }
        for (int v = 0; v < vectors; ++v) sums[v] = sums[v] + sum[v];
    }
}

template <int vectors>
static void add_equal(const Relation& relation, const Panel& panel, std::int64_t tile_begin, Strips strips,
                      const float* weights, const float* numbers, const std::int64_t* keys, Vector (&sums)[vectors]) {
    float excluded[most_rows];
    bool excludes = false;
    for (std::int64_t lane = 0; lane < vectors * lanes; ++lane) {
        const std::int64_t j = place_in(strips, tile_begin, keys[lane]);
        excluded[lane] = static_cast<float>(j);
        excludes = excludes || j >= 0;
    }
    const float* key_numbers = relation.ids_of(panel.batch).of_keys.data() + tile_begin;
    if (excludes)
        sum_equal<true>(key_numbers, strips, weights, numbers, excluded, sums);
    else
        sum_equal<false>(key_numbers, strips, weights, numbers, excluded, sums);
}

template <int vectors>
static void add_members(const Relation& relation, const Panel& panel, std::int64_t tile_begin, Strips strips,
                        const float* weights, Vector (&sums)[vectors]) {
    const std::vector<std::int64_t>& places = relation.places_of(panel.batch);
    auto place = std::lower_bound(places.begin(), places.end(), tile_begin + strips.first);
    for (; place != places.end() && *place < tile_begin + strips.last; ++place) {
        const float* row = weights + (*place - tile_begin) * vectors * lanes;
        for (int v = 0; v < vectors; ++v) sums[v] = sums[v] + load(row + v * lanes);
    }
}

template <int vectors>
static void add_relations(const Call& call, const Panel& panel, std::int64_t tile_begin, Strips strips,
                          const float* weights, const Vector (&shrink)[vectors], const Reduced& reduced) {
    for (std::int64_t n = 0; n < relation_count(call); ++n) {
        const Relation& relation = relation_at(call, n);
        if (relation.form == RelationForm::single) continue;
        const std::int64_t at = n * most_rows;
        Vector sums[vectors];
        for (int v = 0; v < vectors; ++v) sums[v] = zero();
        if (relation.form == RelationForm::equal)
            add_equal(relation, panel, tile_begin, strips, weights, reduced.numbers + at, reduced.keys + at, sums);
        else
            add_members(relation, panel, tile_begin, strips, weights, sums);
        add_sums(sums, shrink, reduced.sums + at, reduced.lost + at);
    }
}

// As weigh_strips, with all that is asked of the weights.
template <class Mode, int vectors>
static void reduce_strips(const Call& call, Panel& panel, Strips strips, const Vector (&largest)[vectors],
                          const Scratch<Mode>& scratch, Vector (&shrink)[vectors]) {
    Reduced& reduced = scratch.reduced[panel.index];
    const std::int64_t begin = scratch.tile.begin, count = strips.last - strips.first;
    for (std::int64_t n = 0; n < relation_count(call); ++n) {
        if (relation_at(call, n).form != RelationForm::single) continue;
        const std::int64_t at = n * most_rows;
        note_scores(panel, begin, strips, scratch.scores, reduced.keys + at, reduced.sums + at);
    }
    Vector reference[vectors], moved[vectors], total[vectors], exact[vectors], logarithms[vectors];
    for (int v = 0; v < vectors; ++v) total[v] = exact[v] = logarithms[v] = zero();
    reference_moves(panel, largest, moved);
    move_reference(panel, largest, reference, shrink);
    float* weights = scratch.scores + strips.first * vectors * lanes;
    weigh_and_sum<Mode>(count, weights, reference, exact, logarithms);
    add_logarithms(panel, moved, shrink, logarithms, reduced.logarithms, reduced.lost_logarithms);
    add_distances(lane_bounds<vectors>(call, panel, begin), strips, scratch.scores, shrink, reduced.distances,
                  reduced.lost_distances);
    add_relations(call, panel, begin, strips, scratch.scores, shrink, reduced);
    round_weights<Mode>(count, weights, total);
    add_totals<Mode>(panel, shrink, total, exact);
}

}  // namespace headwise::HEADWISE_ISA
