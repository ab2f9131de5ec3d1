// The online softmax of one panel over tiles: scores to weights, and what they sum up to.
#pragma once

#include "prefill_products.hpp"

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

// Adds what a tile sums up to, to a sum whose old part shrinks. What float32 loses of it is kept beside, since each of
// many tiles would lose again.
HEADWISE_INLINE void add_kept(Vector old, Vector shrink, Vector sum, float* to, float* lost) {
    const Vector now = fused(old, shrink, sum);
    const Vector added = fused(zero() - old, shrink, now);
    store(to, now);
    store(lost, fused(load(lost), shrink, sum - added));
}

template <class Mode, int vectors>
static void add_totals(Panel& panel, const Vector (&shrink)[vectors], const Vector (&total)[vectors],
                       const Vector (&exact)[vectors]) {
    for (int v = 0; v < vectors; ++v) {
        const std::int64_t at = v * lanes;
        add_kept(load(panel.exact + at), shrink[v], exact[v], panel.exact + at, panel.lost + at);
        if (Mode::depth == 2) store(panel.total + at, fused(load(panel.total + at), shrink[v], total[v]));
    }
}

// Completes the sum of the weights before rounding, which is the only one where products take them as they are.
HEADWISE_INLINE void close_totals(Panel& panel, bool rounded) {
    for (std::int64_t at = 0; at < panel.width(); at += lanes) {
        store(panel.exact + at, load(panel.exact + at) + load(panel.lost + at));
        if (!rounded) store(panel.total + at, load(panel.exact + at));
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

}  // namespace headwise::HEADWISE_ISA
