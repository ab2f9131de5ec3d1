// One item of decoding at work: its rows, its tiles and where the keys and values of a tile lie.
#pragma once

#include "decode_values.hpp"
#include "decode_visible.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

inline std::int64_t type_bytes(Type type) { return type == Type::f32 ? 4 : 2; }

inline DecodeRow row_at(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i) {
    DecodeRow row;
    row.keys = visible_keys(call, b, h, i);
    row.position = call.offsets[b] + i;
    if (call.mask.data != nullptr) row.mask = row_of<std::uint8_t>(call.mask, b, h, i);
    if (call.bias.data != nullptr) {
        const Strides& stride = call.bias.stride;
        const std::int64_t elements = b * stride[0] + h * stride[1] + i * stride[2];
        row.bias = static_cast<const std::byte*>(call.bias.data) + elements * type_bytes(call.bias_type);
    }
    if (call.slopes != nullptr) row.slope = call.slopes[b * call.slopes_batch_stride + h];
    return row;
}

// Keys and values that lie one after the other in memory: of a tile all, or those of one block.
struct Piece {
    const std::byte *key, *value;
    std::int64_t begin, count;  // positions
};

// One item at work: what stays the same from tile to tile.
template <class T>
struct Work {
    const Call& call;
    const Segment& segment;
    const DecodeItem& item;
    DecodeScratch scratch;
    std::int64_t rows, tile, room, query_width, sums_width;
    float *largest, *totals, *sums;  // [rows], [rows], [rows, sums_width]: the partial result

    Work(const Call& of, const Segment& part, const DecodeItem& one, std::byte* memory, float* partial)
        : call(of),
          segment(part),
          item(one),
          scratch(decode_scratch(of, memory)),
          rows(group_rows(of)),
          tile(tile_keys(of, part.storage)),
          room(score_room(of)),
          query_width(padded(of.width)),
          sums_width(padded(of.value_width)),
          largest(partial),
          totals(partial + rows),
          sums(partial + 2 * rows) {}

    const Packed<T>* query(std::int64_t r) const { return packed_query(r); }
    Packed<T>* packed_query(std::int64_t r) const {
        return reinterpret_cast<Packed<T>*>(scratch.query) + r * query_width;
    }
    float* scores(std::int64_t r) const { return scratch.scores + r * room; }
    float* sums_of(std::int64_t r) const { return sums + r * sums_width; }
    bool has_scales() const { return segment.storage != Storage::plain; }
    bool has_blocks() const { return segment.table.data != nullptr; }

    // Where the slot of a position lies: the index of its sequence or block, the slot in there, and how many follow.
    struct Place {
        std::int64_t index, slot, left;
    };
    Place place(std::int64_t position) const {
        const std::int64_t slot = slot_of(segment, item.b, position), size = segment.table.block_size;
        if (!has_blocks()) return {item.b, slot, position_limit};
        return {block_at(segment.table, item.b, slot / size), slot % size, size - slot % size};
    }
    // The longest piece from `begin` on that ends at `end` or before.
    Piece piece(std::int64_t begin, std::int64_t end) const {
        const Place at = place(begin);
        const auto address = [&](const StoredRows& rows_of) {
            const auto& stride = rows_of.stride;
            return rows_of.data + at.index * stride[0] + item.g * stride[1] + at.slot * stride[2];
        };
        return {address(segment.key), address(segment.value), begin, smaller(end - begin, at.left)};
    }
    Rows<T> keys_of(const Piece& piece) const {
        return {piece.key, segment.key.stride[2], call.width, piece.count};
    }
    Rows<T> values_of(const Piece& piece) const {
        return {piece.value, segment.value.stride[2], call.value_width, piece.count};
    }
};

template <class Q, class T>
void pack_queries(const Work<T>& work) {
    const Call& call = work.call;
    for (std::int64_t r = 0; r < work.rows; ++r) {
        const std::int64_t h = work.item.g * group_size(call) + r / call.queries, i = r % call.queries;
        pack_query<T>(row_of<Q>(call.query, work.item.b, h, i), call.width, work.packed_query(r));
    }
}

template <class T>
void begin_rows(const Work<T>& work) {
    const Call& call = work.call;
    for (std::int64_t r = 0; r < work.rows; ++r) {
        const std::int64_t h = work.item.g * group_size(call) + r / call.queries, i = r % call.queries;
        work.scratch.rows[r] = row_at(call, work.item.b, h, i);
        work.largest[r] = -infinity;
        work.totals[r] = 0.0f;
        for (std::int64_t at = 0; at < work.sums_width; at += lanes) store(work.sums_of(r) + at, zero());
    }
    if constexpr (as_pairs<T>) {
        pack_queries<BFloat16>(work);
    } else if constexpr (is_codes<T>) {
        if (call.type == Type::f32) return pack_queries<float>(work);
        if (call.type == Type::bf16) return pack_queries<BFloat16>(work);
        return pack_queries<Half>(work);
    } else {
        pack_queries<T>(work);  // plain numbers are of the query's type
    }
}

// Lists the rows whose window reaches into the tile.
template <class T>
std::int64_t list_active(const Work<T>& work, Tile tile) {
    std::int64_t active = 0;
    for (std::int64_t r = 0; r < work.rows; ++r) {
        const KeyRange keys = work.scratch.rows[r].keys;
        const bool reaches = keys.begin < tile.begin + tile.count && keys.end > tile.begin;
        if (reaches) work.scratch.active[active++] = static_cast<std::int32_t>(r);
    }
    return active;
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
