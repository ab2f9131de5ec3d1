// One panel of query rows against one tile: scores, online softmax, weighted values.
#pragma once

#include "prefill_products.hpp"
#include "prefill_unfinite.hpp"

namespace headwise::HEADWISE_ISA {

// The new reference of the exponentials is the largest score so far (0 where there is none); what was summed under the
// old one shrinks.
template <int vectors>
HEADWISE_INLINE void move_reference(Panel& panel, const Vector (&largest)[vectors], Vector (&reference)[vectors],
                                    Vector (&shrink)[vectors]) {
    for (int v = 0; v < vectors; ++v) {
        const Vector old = load(panel.largest + v * lanes), now = maximum(old, largest[v]);
        store(panel.largest + v * lanes, now);
        reference[v] = select(equal(now, broadcast(-infinity)), zero(), now);
        shrink[v] = exponential_below_one(old - reference[v]);
    }
}

template <class Mode, int vectors>
static void add_totals(Panel& panel, const Vector (&shrink)[vectors], const Vector (&total)[vectors],
                       const Vector (&exact)[vectors]) {
    for (int v = 0; v < vectors; ++v) {
        const Vector grown = fused(load(panel.total + v * lanes), shrink[v], total[v]);
        store(panel.total + v * lanes, grown);
        const Vector unrounded = fused(load(panel.exact + v * lanes), shrink[v], exact[v]);
        store(panel.exact + v * lanes, Mode::depth == 1 ? grown : unrounded);
    }
}

// Scores of the strips to weights in place; `shrink` is for what has been summed before.
template <class Mode, int vectors>
static void weigh_strips(Panel& panel, std::int64_t count, const Vector (&largest)[vectors], float* scores,
                         Vector (&shrink)[vectors]) {
    Vector reference[vectors], total[vectors], exact[vectors];
    for (int v = 0; v < vectors; ++v) total[v] = exact[v] = zero();
    move_reference(panel, largest, reference, shrink);
    weigh_keys<Mode>(count, scores, reference, total, exact);
    add_totals<Mode>(panel, shrink, total, exact);
}

template <class Mode, class Stored, int vectors>
static void attend_strips(const Call& call, Panel& panel, const Changes& changes, Strips strips,
                          const Scratch<Mode>& scratch) {
    const Tile<Mode>& tile = scratch.tile;
    const std::int64_t count = strips.last - strips.first;
    float* scores = scratch.scores + strips.first * vectors * lanes;
    Vector largest[vectors], shrink[vectors];
    score_keys<Mode>(tile.keys + strips.first * tile.width, scratch.query(panel.index), tile.width, count, call.scale,
                     scores, largest);
    if (changes.any())
        change_scores(call, panel, changes, scratch.added.data, tile.begin, strips, scratch.scores, largest);
    note_unfinite(panel, scratch);
    weigh_strips<Mode>(panel, count, largest, scores, shrink);
    add_values<Mode>(tile.values + strips.first * strip, tile.columns, scores, count, shrink,
                     scratch.output(panel.index));
    if (tile.unfinite > 0) add_unfinite<Mode, Stored>(call, panel, strips, scratch);
}

template <class Mode, class Stored>
static void attend_tile(const Call& call, Panel& panel, Scratch<Mode>& scratch) {
    const std::int64_t begin = scratch.tile.begin;
    const KeyRange part = seen_part(panel, begin);
    if (part.begin >= part.end) return;
    const Strips strips = strips_of(part, begin);
    Changes changes = changes_of(call, panel, begin, strips);
    if (changes.added) {
        fill_added(call, panel, part, begin, scratch.added);
        if (scratch.added.hides_all) return;
        changes.added = scratch.added.changes;
    }
    if (panel.vectors == 1) attend_strips<Mode, Stored, 1>(call, panel, changes, strips, scratch);
    if (panel.vectors == 2) attend_strips<Mode, Stored, 2>(call, panel, changes, strips, scratch);
    if constexpr (most_vectors > 2)
        if (panel.vectors == 3) attend_strips<Mode, Stored, 3>(call, panel, changes, strips, scratch);
}

}  // namespace headwise::HEADWISE_ISA
