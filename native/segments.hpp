// Where the keys and values of a call lie: in one or several segments, each a run of positions with memory of its own.
//
// A segment holds plain numbers of the call's type, or codes of 8 or 4 bits with one float32 scale for each key and
// each value. Its memory is a tensor [B, G, slots, width], or a pool [blocks, G, block size, width] of which a table
// names the blocks of every sequence in their order. Strides are in bytes, since two codes of 4 bits share one; those of
// scales are in floats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "attention.hpp"

namespace headwise {

enum class Storage : std::uint8_t { plain, int8, int4 };

// What lies in memory; columns.hpp turns it into float32.
struct Int8 {
    std::int8_t code;
};
struct Int4 {
    std::uint8_t codes;  // of two neighbours, each plus 8, the first one low
};

// Keys or values of a segment.
struct StoredRows {
    const std::byte* data = nullptr;
    std::array<std::int64_t, 3> stride{};  // in bytes, per sequence or block, head, slot
    const float* scales = nullptr;         // one per row; nullptr where the numbers are plain
    std::array<std::int64_t, 3> scale_stride{};
};

// The blocks of every sequence, [B, numbers]; every number that is read was checked against the pool.
struct BlockTable {
    const void* data = nullptr;  // nullptr: no blocks, sequence b lies at index b
    bool is_wide = false;        // int64 and not int32
    std::int64_t stride = 0, step = 0;  // in elements, from sequence to sequence and from block to block
    std::int64_t block_size = 1;
};

struct Segment {
    Storage storage = Storage::plain;
    StoredRows key, value;
    BlockTable table;
    // Per sequence: the position of the first key, how many there are, and the slot that the first one lies in.
    // nullptr: 0, all keys of the call, and 0.
    const std::int64_t *first = nullptr, *count = nullptr, *slot = nullptr;
};

// Static, as in attention.hpp: several instruction sets include this.
[[maybe_unused]] static KeyRange segment_keys(const Call& call, const Segment& segment, std::int64_t b) {
    const std::int64_t first = segment.first == nullptr ? 0 : segment.first[b];
    return {first, first + (segment.count == nullptr ? call.keys : segment.count[b])};
}

[[maybe_unused]] static std::int64_t slot_of(const Segment& segment, std::int64_t b, std::int64_t position) {
    const std::int64_t first = segment.first == nullptr ? 0 : segment.first[b];
    return position - first + (segment.slot == nullptr ? 0 : segment.slot[b]);
}

[[maybe_unused]] static std::int64_t block_at(const BlockTable& table, std::int64_t b, std::int64_t number) {
    const std::int64_t at = b * table.stride + number * table.step;
    if (table.is_wide) return static_cast<const std::int64_t*>(table.data)[at];
    return static_cast<const std::int32_t*>(table.data)[at];
}

// Bytes that `width` numbers of a row take.
[[maybe_unused]] static std::int64_t row_bytes(Storage storage, Type type, std::int64_t width) {
    if (storage == Storage::int4) return (width + 1) / 2;
    return storage == Storage::int8 ? width : width * (type == Type::f32 ? 4 : 2);
}

// The one segment of a call whose keys and values are plain tensors.
[[maybe_unused]] static Segment whole_segment(const Call& call) {
    const std::int64_t size = call.type == Type::f32 ? 4 : 2;
    const auto rows = [size](const Strided<const void*>& tensor) {
        StoredRows stored;
        stored.data = static_cast<const std::byte*>(tensor.data);
        for (std::size_t axis = 0; axis < 3; ++axis) stored.stride[axis] = tensor.stride[axis] * size;
        return stored;
    };
    Segment segment;
    segment.key = rows(call.key);
    segment.value = rows(call.value);
    return segment;
}

}  // namespace headwise
