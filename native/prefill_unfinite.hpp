// Values that are infinite or NaN. They stay out of the products, in which a hidden one times its weight of 0 would
// reach every row; here they are added to the rows that see them. This is slow, and such values are rare.
#pragma once

#include "prefill_scratch.hpp"

namespace headwise::HEADWISE_ISA {

// Notes which rows see the keys with such values, told from their scores.
template <class Mode>
static void note_unfinite(const Panel& panel, const Scratch<Mode>& scratch) {
    for (int n = 0; n < scratch.tile.unfinite; ++n) {
        const float* scores = scratch.scores + scratch.tile.which[n] * panel.width();
        for (std::int64_t lane = 0; lane < panel.rows; ++lane)
            scratch.sees[n * most_rows + lane] = scores[lane] != -infinity;
    }
}

// Adds their values. Scores have become weights by now.
template <class Mode, class Stored>
static void add_unfinite(const Call& call, const Panel& panel, Strips strips, const Scratch<Mode>& scratch) {
    const std::int64_t width = panel.width();
    const auto* weights = reinterpret_cast<const typename Mode::Element*>(scratch.scores + strips.first * width);
    float* outputs = scratch.output(panel.index);
    for (int n = 0; n < scratch.tile.unfinite; ++n) {
        const std::int64_t j = scratch.tile.which[n];
        if (j < strips.first || j >= strips.last) continue;
        const Stored* values = row_of<Stored>(call.value, panel.batch, panel.kv_head, scratch.tile.begin + j);
        widen_row(values, call.value_width, scratch.row);
        for (std::int64_t lane = 0; lane < panel.rows; ++lane) {
            if (!scratch.sees[n * most_rows + lane]) continue;
            const float weight = Mode::weight(weights, j - strips.first, lane, width);
            for (std::int64_t d = 0; d < call.value_width; ++d) outputs[d * width + lane] += weight * scratch.row[d];
        }
    }
}

}  // namespace headwise::HEADWISE_ISA
