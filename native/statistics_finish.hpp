// From what was read off the weights of a panel to its statistics.
#pragma once

#include "prefill_finish.hpp"
#include "statistics_panel.hpp"

namespace headwise::HEADWISE_ISA {

// How a row's weights, counted from its largest score m, become shares: share = e^(s - m) * factor.
struct Shares {
    float factor[most_rows], logarithm[most_rows];  // of the factor; both 0 in a row that saw nothing
    float reference[most_rows];                     // m, or 0 where there is none
};

static void find_shares(const Call& call, const Panel& panel, Shares& shares) {
    float total[most_rows];
    for (std::int64_t lane = 0; lane < panel.width(); ++lane)
        shares.logarithm[lane] = call.sinks != nullptr && lane < panel.rows ? call.sinks[panel.head[lane]] : -infinity;
    for (std::int64_t at = 0; at < panel.width(); at += lanes) {
        const Vector hidden = broadcast(-infinity), largest = load(panel.largest + at);
        const Vector exact = load(panel.exact + at), sink = load(shares.logarithm + at);
        const Mask nothing = both(equal(largest, hidden), equal(exact, zero()));  // not where it is NaN
        const Vector reference = select(nothing, zero(), maximum(largest, sink));
        const Vector down = select(nothing, zero(), largest - reference), shrink = exponential_below_one(down);
        const Vector sunk = exponential_below_one(minimum(sink - reference, zero()));
        const Vector sum = select(nothing, broadcast(1.0f), fused(exact, shrink, sunk));
        store(total + at, sum);
        store(shares.factor + at, select(nothing, zero(), shrink / sum));
        store(shares.logarithm + at, down);
        store(shares.reference + at, select(equal(largest, hidden), zero(), largest));
    }
    for (std::int64_t lane = 0; lane < panel.rows; ++lane) shares.logarithm[lane] -= ::logf(total[lane]);
}

// Rows of a panel to [B, H, L].
static void scatter(const Call& call, const Panel& panel, const float* from, float* to) {
    for (std::int64_t lane = 0; lane < panel.rows; ++lane)
        to[(panel.batch * call.heads + panel.head[lane]) * call.queries + panel.query[lane]] = from[lane];
}

// Minus the sum over shares p of p ln p, where ln p = (s - m) + ln factor.
static void finish_entropy(const Call& call, const Panel& panel, const Shares& shares, const Reduced& reduced) {
    float entropy[most_rows];
    for (std::int64_t at = 0; at < panel.width(); at += lanes) {
        const Vector factor = load(shares.factor + at), logarithm = load(shares.logarithm + at);
        const Vector logarithms = load(reduced.logarithms + at) + load(reduced.lost_logarithms + at);
        const Vector sum = fused(load(panel.exact + at), logarithm, logarithms);
        store(entropy + at, zero() - factor * sum);
    }
    scatter(call, panel, entropy, call.statistics->entropy);
}

static void finish_mass(const Call& call, const Panel& panel, const Shares& shares, const Reduced& reduced) {
    const std::int64_t step = call.batch * call.heads * call.queries;
    float mass[most_rows];
    for (std::int64_t n = 0; n < relation_count(call); ++n) {
        const float *sums = reduced.sums + n * most_rows, *lost = reduced.lost + n * most_rows;
        const bool single = relation_at(call, n).form == RelationForm::single;
        for (std::int64_t at = 0; at < panel.width(); at += lanes) {
            Vector sum = load(sums + at) + load(lost + at);  // a single score loses nothing
            if (single) sum = exponential_below_one(sum - load(shares.reference + at));
            store(mass + at, sum * load(shares.factor + at));
        }
        scatter(call, panel, mass, call.statistics->mass + n * step);
    }
}

static void finish_statistics(const Call& call, const Panel& panel, const Reduced& reduced) {
    Shares shares;
    find_shares(call, panel, shares);
    finish_entropy(call, panel, shares, reduced);
    finish_mass(call, panel, shares, reduced);
    scatter(call, panel, shares.factor, call.statistics->largest);  // e^(m - m) = 1
    float distance[most_rows];
    for (std::int64_t at = 0; at < panel.width(); at += lanes) {
        const Vector sum = load(reduced.distances + at) + load(reduced.lost_distances + at);
        store(distance + at, sum * load(shares.factor + at));
    }
    scatter(call, panel, distance, call.statistics->distance);
}

}  // namespace headwise::HEADWISE_ISA
