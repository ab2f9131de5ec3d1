// Which rows see which keys of a tile, written out only where a mask or an edge of a window hides some of them.
#pragma once

#include "decode_scores.hpp"
#include "decode_softmax.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

// The keys of a tile whose values are added: for all rows at once, and those that only some of the rows may touch.
struct TileKeys {
    std::int32_t together[decode_tile], apart[decode_tile];
    std::int64_t together_count, apart_count;
    bool something_hidden;
};

inline bool covers(KeyRange keys, Tile tile) {
    return keys.begin <= tile.begin && keys.end >= tile.begin + tile.count;
}

inline void write_visible(const Call& call, const DecodeRow& row, Tile tile, std::uint8_t* visible) {
    const std::int64_t stride = call.mask.stride[3];
    for (std::int64_t j = 0; j < tile.count; ++j) visible[j] = 0;
    const std::int64_t begin = larger(row.keys.begin - tile.begin, std::int64_t{0});
    const std::int64_t end = smaller(row.keys.end - tile.begin, tile.count);
    if (row.mask == nullptr) {
        for (std::int64_t j = begin; j < end; ++j) visible[j] = 1;
        return;
    }
    const std::uint8_t* mask = row.mask + tile.begin * stride;
    for (std::int64_t j = begin; j < end; ++j) visible[j] = mask[j * stride] != 0;
}

// Fills in `visible` (per row, tile_keys bytes) where something is hidden, and sorts the keys: those that no row sees
// are left out; those that only some see stand apart if their value isn't finite, since even weight 0 would carry NaN
// into the rows that don't see them.
//
// `is_finite` tells it of the value of one key of the tile.
template <class IsFinite>
void sort_keys(const Call& call, Tile tile, const DecodeScratch& scratch, std::int64_t active, TileKeys& keys,
               const IsFinite& is_finite) {
    keys.something_hidden = call.mask.data != nullptr;
    for (std::int64_t x = 0; x < active; ++x) {
        if (!covers(scratch.rows[scratch.active[x]].keys, tile)) keys.something_hidden = true;
    }
    keys.together_count = keys.apart_count = 0;
    if (!keys.something_hidden) {
        for (std::int64_t j = 0; j < tile.count; ++j) keys.together[j] = static_cast<std::int32_t>(j);
        keys.together_count = tile.count;
        return;
    }
    std::int32_t seen[decode_tile] = {};
    for (std::int64_t x = 0; x < active; ++x) {
        const std::int64_t r = scratch.active[x];
        std::uint8_t* visible = scratch.visible + r * longest_tile(call);
        write_visible(call, scratch.rows[r], tile, visible);
        for (std::int64_t j = 0; j < tile.count; ++j) seen[j] += visible[j];
    }
    for (std::int64_t j = 0; j < tile.count; ++j) {
        if (seen[j] == 0) continue;
        const bool by_all = seen[j] == active;
        const bool safe = by_all || is_finite(j);
        if (safe) keys.together[keys.together_count++] = static_cast<std::int32_t>(j);
        else keys.apart[keys.apart_count++] = static_cast<std::int32_t>(j);
    }
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
