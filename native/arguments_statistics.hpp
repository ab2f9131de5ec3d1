// Relations and statistics as a caller gives them, and the checks that stand between them and any memory.
#pragma once

#include "arguments.hpp"
#include "statistics.hpp"

namespace headwise {

// Each array is int64 (members: bool), contiguous in its last axis, with a row per sequence or one for all.
struct RelationArgument {
    RelationForm form = RelationForm::single;
    std::vector<std::optional<TensorArgument>> arrays;  // single: index; equal: query_ids, key_ids, excluded or none;
                                                        // members: members
};

struct StatisticsArguments {
    std::vector<RelationArgument> relations;  // N
    TensorArgument mass;                      // [N, B, H, L], float32 and contiguous as the next three
    TensorArgument entropy, largest, distance;  // [B, H, L]
    TensorArgument hits, seen;                // [N, B, H or 1, L] and [B, H or 1, L], int64 and contiguous
};

// What the arguments ask of a checked call. std::invalid_argument says which of them does not fit.
Statistics checked_statistics(const StatisticsArguments& given, const Call& call);

}  // namespace headwise
