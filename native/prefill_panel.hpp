// Which query rows are computed together.
#pragma once

#include "prefill.hpp"
#include "prefill_simd.hpp"

namespace headwise::HEADWISE_ISA {

// Some rows of a piece, one per lane, and what has been summed for them so far.
struct Panel {
    std::int64_t index, batch, kv_head;  // index: within the piece
    std::int64_t rows;                   // lanes behind them hold zeros and are never stored
    int vectors;                         // in use
    KeyRange any, all;                   // keys that some row sees, that every row sees
    std::int64_t head[most_rows], query[most_rows];
    KeyRange keys[most_rows];
    // Of the keys so far: the largest score, the sum of the weights as they enter the products (close_totals sets it
    // where that is no other), that of the weights before rounding, and what the last one lost in float32.
    float largest[most_rows], total[most_rows], exact[most_rows], lost[most_rows];

    std::int64_t width() const { return std::int64_t{vectors} * lanes; }
};

// The row of one lane: which query of which head it is, and what it sees.
static void place_row(const Call& call, const PrefillPiece& piece, std::int64_t row, std::int64_t lane, Panel& panel) {
    const std::int64_t head = piece.heads[row % piece.head_count], query = row / piece.head_count;
    const KeyRange seen = visible_keys(call, piece.batch, head, query);
    panel.head[lane] = head;
    panel.query[lane] = query;
    panel.keys[lane] = seen;
    panel.all = {larger(panel.all.begin, seen.begin), smaller(panel.all.end, seen.end)};
    if (seen.begin < seen.end) panel.any = {smaller(panel.any.begin, seen.begin), larger(panel.any.end, seen.end)};
}

static void start_panel(const Call& call, const PrefillPiece& piece, std::int64_t index, Panel& panel) {
    const std::int64_t first_row = piece.first_row + index * most_rows;
    panel.index = index;
    panel.batch = piece.batch;
    panel.kv_head = piece.kv_head;
    panel.rows = smaller(most_rows, piece.first_row + piece.rows - first_row);
    panel.vectors = static_cast<int>(round_up(panel.rows, lanes) / lanes);
    panel.any = {call.keys, 0};
    panel.all = {0, call.keys};
    for (std::int64_t lane = 0; lane < panel.width(); ++lane) {
        panel.largest[lane] = -infinity;
        panel.total[lane] = panel.exact[lane] = panel.lost[lane] = 0.0f;
        panel.keys[lane] = {0, call.keys};
        if (lane < panel.rows) place_row(call, piece, first_row + lane, lane, panel);
    }
}

}  // namespace headwise::HEADWISE_ISA
