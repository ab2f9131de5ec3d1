// Segments as a caller gives them, and the checks that stand between them and any memory.
#pragma once

#include "arguments.hpp"
#include "segments.hpp"

namespace headwise {

struct SegmentArgument {
    int bits = 0;  // of a code: 8 or 4; 0: plain numbers of the query's type
    // [B, G, slots, width of the stored rows], or [blocks, G, block size, width] with a table.
    TensorArgument key, value;
    std::optional<TensorArgument> key_scales, value_scales;  // the same shape with width 1, float32
    std::vector<std::int64_t> first, count, slot;            // [B], see Segment
    std::optional<TensorArgument> table;                     // [B, most blocks], int32 or int64
};

// Keys and values of a call that lie in segments, instead of those of the arguments.
struct SegmentArguments {
    std::int64_t kv_heads = 0, keys = 0, value_width = 0;  // G, S, Dv; positions are below S
    std::vector<SegmentArgument> segments;                 // in the order of their positions
};

// Puts a key and a value without memory of their own into the arguments, so that checked_call can check all else.
void stand_in_for_segments(const SegmentArguments& given, Arguments& arguments);

// The segments, which point into what was given. std::invalid_argument says what does not fit: a shape, a slot beyond
// the memory, a block outside the pool.
std::vector<Segment> checked_segments(const SegmentArguments& given, const Call& call);

}  // namespace headwise
