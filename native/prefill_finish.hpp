// From what was summed for the rows of a panel to their output and LSE.
#pragma once

#include <math.h>

#include "prefill_panel.hpp"

namespace headwise::HEADWISE_ISA {

// Factors of the outputs and the LSE of each lane, the sink included; 0 and -infinity for a row that saw nothing.
static void close_sums(const Call& call, const Panel& panel, float* factors, float* lses) {
    float sinks[most_rows], totals[most_rows];
    for (std::int64_t lane = 0; lane < most_rows; ++lane)
        sinks[lane] = call.sinks != nullptr && lane < panel.rows ? call.sinks[panel.head[lane]] : -infinity;
    for (int v = 0; v < panel.vectors; ++v) {
        const std::int64_t at = v * lanes;
        const Vector largest = load(panel.largest + at), sink = load(sinks + at), hidden = broadcast(-infinity);
        const Vector total = load(panel.total + at);
        const Mask unseen = both(equal(largest, hidden), equal(total, zero()));  // not where it is NaN
        const Vector reference = select(unseen, zero(), maximum(largest, sink));
        const Vector shrink = exponential_below_one(largest - reference);
        const Vector sunk = exponential_below_one(minimum(sink - reference, zero()));
        const Vector factor = shrink / fused(total, shrink, sunk);
        store(factors + at, select(unseen, zero(), factor));
        store(totals + at, select(unseen, broadcast(1.0f), fused(load(panel.exact + at), shrink, sunk)));
        store(lses + at, select(unseen, hidden, reference));
    }
    for (std::int64_t lane = 0; lane < panel.rows; ++lane) lses[lane] += ::logf(totals[lane]);
}

// One square of outputs to memory: columns d to d + lanes - 1 of the rows in lanes `from` to from + lanes - 1.
template <class Stored>
static void store_square(const Call& call, const Panel& panel, const float* outputs, std::int64_t from, std::int64_t d,
                         Vector factor) {
    const std::int64_t count = smaller(lanes, call.value_width - d);
    Vector rows[lanes];
    for (int n = 0; n < lanes; ++n)
        rows[n] = n < count ? load(outputs + (d + n) * panel.width() + from) * factor : zero();
    transpose(rows);
    for (int n = 0; n < lanes && from + n < panel.rows; ++n) {
        const std::int64_t h = panel.head[from + n], i = panel.query[from + n];
        Stored* to = const_cast<Stored*>(row_of<Stored>(call.output, panel.batch, h, i)) + d;
        if (count == lanes)
            store(to, rows[n]);
        else
            store_first(to, rows[n], count);
    }
}

template <class Stored>
static void finish_panel(const Call& call, const Panel& panel, const float* outputs) {
    float factors[most_rows], lses[most_rows];
    close_sums(call, panel, factors, lses);
    for (std::int64_t from = 0; from < panel.width(); from += lanes)
        for (std::int64_t d = 0; d < call.value_width; d += lanes)
            store_square<Stored>(call, panel, outputs, from, d, load(factors + from));
    if (call.lse == nullptr) return;
    for (std::int64_t lane = 0; lane < panel.rows; ++lane)
        call.lse[(panel.batch * call.heads + panel.head[lane]) * call.queries + panel.query[lane]] = lses[lane];
}

}  // namespace headwise::HEADWISE_ISA
