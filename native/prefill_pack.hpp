// Copies of queries, keys and values in the order in which the products of prefill read them.
#pragma once

#include <cstring>
#include <type_traits>

#include "prefill_panel.hpp"

namespace headwise::HEADWISE_ISA {

// Keys of one tile; tiles begin at multiples of it, so that every row meets the same tiles in any split of the work.
inline constexpr std::int64_t tile_keys = 96;

// A tile: rows of keys [tile_keys, depth of products], values by strips of columns
// [Dv / strip, tile_keys / depth, strip, depth]. Whatever is not read is 0.
template <class Mode>
struct Tile {
    using Element = typename Mode::Element;
    std::int64_t begin = 0;      // the key at its start
    std::int64_t width = 0;      // of a row of keys, a multiple of Mode::depth
    std::int64_t columns = 0;    // of the values, a multiple of strip
    Element* keys = nullptr;
    Element* values = nullptr;
    float* row = nullptr;        // [depth, columns], on the way
    int unfinite = 0;            // keys whose values hold infinity or NaN; their values are 0 here
    std::int64_t which[tile_keys];
};

template <class Stored>
static void widen_row(const Stored* from, std::int64_t count, float* to) {
    std::int64_t at = 0;
    for (; at + lanes <= count; at += lanes) store(to + at, load(from + at));
    if (at < count) store_first(to + at, load_first(from + at, count - at), count - at);
}

template <class Mode, class Stored>
static void copy_row(const Stored* from, std::int64_t count, typename Mode::Element* to) {
    if constexpr (std::is_same_v<Stored, typename Mode::Element>) {
        if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(Stored));
    } else {
        widen_row(from, count, to);
    }
}

// Queries to [D / depth, lane, depth]; lanes without a row hold zeros.
template <class Mode, class Stored>
static void pack_queries(const Call& call, const Panel& panel, typename Mode::Element* to) {
    constexpr std::int64_t depth = Mode::depth, step = lanes * depth;
    const std::int64_t length = round_up(call.width, depth);
    for (std::int64_t from = 0; from < panel.width(); from += lanes)
        for (std::int64_t d = 0; d < length; d += step) {
            Vector rows[lanes];
            for (int lane = 0; lane < lanes; ++lane) {
                const std::int64_t at = from + lane;
                rows[lane] = zero();
                if (at >= panel.rows) continue;
                const Stored* row = row_of<Stored>(call.query, panel.batch, panel.head[at], panel.query[at]);
                rows[lane] = Mode::next(row + d, call.width - d);
            }
            transpose(rows);
            for (std::int64_t n = 0; n < lanes && d + n * depth < length; ++n)
                store(reinterpret_cast<float*>(to + (d + n * depth) * panel.width() + from * depth), rows[n]);
        }
}

// Keys begin to end - 1, with zeros up to whole strips on both sides.
template <class Mode, class Stored>
static void pack_keys(const Call& call, std::int64_t batch, std::int64_t kv_head, KeyRange keys, Tile<Mode>& tile) {
    const std::int64_t first = (keys.begin - tile.begin) / strip * strip;
    const std::int64_t last = round_up(keys.end - tile.begin, strip);
    for (std::int64_t j = first; j < last; ++j) {
        typename Mode::Element* to = tile.keys + j * tile.width;
        const std::int64_t key = tile.begin + j;
        const bool read = key >= keys.begin && key < keys.end;
        if (read) copy_row<Mode>(row_of<Stored>(call.key, batch, kv_head, key), call.width, to);
        for (std::int64_t d = read ? call.width : 0; d < tile.width; ++d) to[d] = {};
    }
}

// The values of one key to row, zeros behind them; all zeros, and noted, where one is not finite: those are added by
// prefill_unfinite.hpp.
template <class Mode, class Stored>
static void read_values(const Call& call, std::int64_t batch, std::int64_t kv_head, std::int64_t key, bool read,
                        Tile<Mode>& tile, typename Mode::Element* row) {
    const std::int64_t count = call.value_width;
    if (read) {
        copy_row<Mode>(row_of<Stored>(call.value, batch, kv_head, key), count, row);
        if (Mode::all_finite(row, count)) {
            for (std::int64_t d = count; d < tile.columns; ++d) row[d] = {};
            return;
        }
        tile.which[tile.unfinite++] = key - tile.begin;
    }
    for (std::int64_t d = 0; d < tile.columns; ++d) row[d] = {};
}

template <class Mode, class Stored>
static void pack_values(const Call& call, std::int64_t batch, std::int64_t kv_head, KeyRange keys, Tile<Mode>& tile) {
    using Element = typename Mode::Element;
    constexpr std::int64_t depth = Mode::depth;
    const std::int64_t first = (keys.begin - tile.begin) / strip * strip;
    const std::int64_t last = round_up(keys.end - tile.begin, strip);
    Element* rows = reinterpret_cast<Element*>(tile.row);  // [depth, columns]
    tile.unfinite = 0;
    if (tile.columns == 0) return;  // only statistics are asked for
    for (std::int64_t j = first; j < last; j += depth) {
        for (std::int64_t part = 0; part < depth; ++part) {
            const std::int64_t key = tile.begin + j + part;
            read_values<Mode, Stored>(call, batch, kv_head, key, key >= keys.begin && key < keys.end, tile,
                                      rows + part * tile.columns);
        }
        for (std::int64_t column = 0; column < tile.columns; column += strip) {
            Element* to = tile.values + column * tile_keys + j * strip;
            for (int d = 0; d < strip; ++d)
                for (std::int64_t part = 0; part < depth; ++part)
                    to[d * depth + part] = rows[part * tile.columns + column + d];
        }
    }
}

}  // namespace headwise::HEADWISE_ISA
