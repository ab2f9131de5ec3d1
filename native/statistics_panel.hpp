// What has been read off the weights of the rows of a panel so far.
#pragma once

#include "prefill_panel.hpp"
#include "statistics.hpp"

namespace headwise::HEADWISE_ISA {

// With m the largest score so far and w = e^(s - m) the weights: sums over the keys so far. Arrays of relations are
// [N, most_rows].
struct Reduced {
    float logarithms[most_rows], distances[most_rows];  // of w (s - m), of w |position - key|
    float lost_logarithms[most_rows], lost_distances[most_rows];  // what they lost in float32, see add_kept
    float* sums;         // of the w of the relation's keys; where it has a single one, the score of that
    float* lost;
    float* numbers;      // ids of the queries where they are compared
    std::int64_t* keys;  // the single key, or the one that does not count; -1: none
};

static std::int64_t relation_count(const Call& call) {
    return call.statistics == nullptr ? 0 : static_cast<std::int64_t>(call.statistics->relations.size());
}

static const Relation& relation_at(const Call& call, std::int64_t n) {
    return call.statistics->relations[static_cast<std::size_t>(n)];
}

static std::int64_t lane_key(const Relation& relation, std::int64_t b, std::int64_t i) {
    const PerSequence<std::int64_t>& keys =
        relation.form == RelationForm::single ? relation.index : relation.excluded;
    return keys.data == nullptr ? -1 : keys.row(b)[i];
}

static void start_reduced(const Call& call, const Panel& panel, Reduced& reduced) {
    for (std::int64_t lane = 0; lane < most_rows; ++lane) {
        reduced.logarithms[lane] = reduced.distances[lane] = 0.0f;
        reduced.lost_logarithms[lane] = reduced.lost_distances[lane] = 0.0f;
    }
    for (std::int64_t n = 0; n < relation_count(call); ++n) {
        const Relation& relation = relation_at(call, n);
        const bool single = relation.form == RelationForm::single, equal = relation.form == RelationForm::equal;
        for (std::int64_t lane = 0; lane < most_rows; ++lane) {
            const std::int64_t at = n * most_rows + lane, i = lane < panel.rows ? panel.query[lane] : 0;
            const bool used = lane < panel.rows;
            reduced.sums[at] = single ? -infinity : 0.0f;
            reduced.lost[at] = 0.0f;
            reduced.keys[at] = used ? lane_key(relation, panel.batch, i) : -1;
            reduced.numbers[at] =
                used && equal ? relation.ids_of(panel.batch).of_queries[static_cast<std::size_t>(i)] : -2.0f;
        }
    }
}

}  // namespace headwise::HEADWISE_ISA
