// Decoding: attention of a few queries per sequence, whose time is that of reading keys and values once.
//
// A call is cut into items, each one KV head of one sequence and a run of its keys in one segment: the cuts depend on
// the numbers of the call and never on the threads, so that the same call gives the same bits. An item leaves for each
// of its rows (query heads of the group x queries) the largest score, the sum of the exponentials and the weighted sum
// of values; merging takes them together exactly (by their log-sum-exp) and writes the output.
#pragma once

#include <cstddef>
#include <vector>

#include "attention.hpp"
#include "segments.hpp"

namespace headwise {

// Scores are computed for a tile of keys at a time: at most so many, a multiple of the lanes of every instruction set.
inline constexpr std::int64_t decode_tile = 1024;

struct DecodeItem {
    std::int64_t b = 0, g = 0;
    KeyRange keys;
    std::size_t segment = 0;
    std::int64_t slot = 0;  // where its rows lie among the partial results
};

// The items of one KV head of one sequence.
struct DecodeSlots {
    std::int64_t first = 0, count = 0;
};
inline constexpr std::int64_t most_slots = 64;
// Each begins with an item of its own, which the slots must have room for besides those of long runs of keys.
inline constexpr std::size_t most_segments = 16;

[[maybe_unused]] static std::int64_t rounded_up(std::int64_t n, std::int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

// Rows of a group, R x L: row (h - g R) L + i is query i of head h.
[[maybe_unused]] static std::int64_t group_rows(const Call& call) { return group_size(call) * call.queries; }

// A single row leaves the processor time to wait for memory, and its own prefetching serves best: long runs of keys,
// then of values, in the order of memory. With more rows, keys and values take turns often and each is fetched while
// the other is worked on. (Measured: for 1 row long runs read 5 to 30 % more a second; for 3 no more, for 4 a quarter
// less.)
[[maybe_unused]] static bool reads_in_long_runs(const Call& call) { return group_rows(call) == 1; }

// Keys of one tile; short ones have about 16 KiB, half of a first-level cache.
inline constexpr std::int64_t longest_short_tile = 64;
[[maybe_unused]] static std::int64_t tile_keys(const Call& call, Storage storage) {
    constexpr std::int64_t short_bytes = 16 << 10, fewest = 16;
    if (reads_in_long_runs(call)) return decode_tile;
    const std::int64_t width = call.width > call.value_width ? call.width : call.value_width;
    const std::int64_t fit = short_bytes / row_bytes(storage, call.type, width < 1 ? 1 : width) / fewest * fewest;
    return fit < fewest ? fewest : fit > longest_short_tile ? longest_short_tile : fit;
}
[[maybe_unused]] static std::int64_t longest_tile(const Call& call) {
    return reads_in_long_runs(call) ? decode_tile : longest_short_tile;
}

// Widths in memory of an item's own copies, whatever the instruction set: whole pairs of vectors.
[[maybe_unused]] static std::int64_t padded(std::int64_t width) { return rounded_up(width, 32); }

// The partial result of one item: rows x (largest score, sum of exponentials), then rows x padded(Dv) sums of values.
[[maybe_unused]] static std::int64_t partial_floats(const Call& call) {
    return group_rows(call) * (2 + padded(call.value_width));
}

// What an item knows of one of its rows.
struct DecodeRow {
    KeyRange keys;                       // that its window and the key length leave
    std::int64_t position = 0;           // where the query stands
    const std::uint8_t* mask = nullptr;  // at key 0
    const std::byte* bias = nullptr;     // at key 0
    float slope = 0.0f;
};

// The memory of one thread, cut into parts; each begins at a multiple of 64 bytes.
struct DecodeScratch {
    std::byte* query;       // [rows, padded(D)] as the dot products want it
    float* scores;          // [rows, score_room], then the weights
    std::uint8_t* visible;  // [rows, longest_tile], only of tiles in which something is hidden
    float* key_scales;      // [score_room], where keys and values are codes
    float* value_scales;
    DecodeRow* rows;        // [rows]
    std::int32_t* active;   // [rows]: those that see any of the tile
    std::size_t bytes;
};

// Scores of a row: those of a tile, and what a block that begins at the last key writes behind them.
[[maybe_unused]] static std::int64_t score_room(const Call& call) { return longest_tile(call) + 16; }

[[maybe_unused]] static DecodeScratch decode_scratch(const Call& call, std::byte* memory) {
    const auto rows = static_cast<std::size_t>(group_rows(call));
    const auto width = static_cast<std::size_t>(padded(call.width));
    const auto tile = static_cast<std::size_t>(longest_tile(call));
    const auto room = static_cast<std::size_t>(score_room(call));
    std::size_t used = 0;
    const auto part = [&](std::size_t bytes) {
        const std::size_t at = used;
        used += (bytes + 63) / 64 * 64;
        return memory == nullptr ? nullptr : memory + at;
    };
    DecodeScratch scratch{};
    scratch.query = part(rows * width * sizeof(float));
    scratch.scores = reinterpret_cast<float*>(part(rows * room * sizeof(float)));
    scratch.key_scales = reinterpret_cast<float*>(part(room * sizeof(float)));
    scratch.value_scales = reinterpret_cast<float*>(part(room * sizeof(float)));
    scratch.visible = reinterpret_cast<std::uint8_t*>(part(rows * tile));
    scratch.rows = reinterpret_cast<DecodeRow*>(part(rows * sizeof(DecodeRow)));
    scratch.active = reinterpret_cast<std::int32_t*>(part(rows * sizeof(std::int32_t)));
    scratch.bytes = used;
    return scratch;
}

// What each instruction set offers for it.
struct DecodeKernels {
    void (*run_item)(const Call& call, const Segment& segment, const DecodeItem& item, std::byte* scratch,
                     float* partial);
    // One row of all items of its group to output and LSE; `partials` are those of slot 0.
    void (*merge_row)(const Call& call, const float* partials, DecodeSlots slots, std::int64_t b, std::int64_t h,
                      std::int64_t i);
};

// Output and LSE of the whole call. std::bad_alloc where there is no room for the partial results.
void decode(const Call& call, const DecodeKernels& kernels);

// The same over keys and values that lie in segments, at most most_segments of them; those of the call are not read.
// Together they hold each position once at most.
void decode(const Call& call, const std::vector<Segment>& segments, const DecodeKernels& kernels);

}  // namespace headwise
