// One panel of query rows against one tile: scores, online softmax, weighted values.
#pragma once

#include "prefill_softmax.hpp"
#include "prefill_unfinite.hpp"
#include "statistics_reduce.hpp"

namespace headwise::HEADWISE_ISA {

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
    if (call.statistics != nullptr)
        reduce_strips<Mode>(call, panel, strips, largest, scratch, shrink);
    else
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
