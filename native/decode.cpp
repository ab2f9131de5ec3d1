// One item of decoding and the merging of items, compiled once per instruction set.
#include "decode.hpp"

#include <cmath>

#include "decode_kernels.hpp"
#include "decode_merge.hpp"
#include "decode_work.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

template <class T>
Ahead ahead_of(const Rows<T>& rows) {
    return {rows.data, rows.stride, rows.count, bytes_of_columns<T>(rows.width)};
}

// What to fetch while a piece is scored. Short tiles need its values next. In long ones memory is read in its order,
// which the processor follows by itself but for the way from one block to the next.
template <class T>
Ahead while_scoring(const Work<T>& work, const Piece& piece, std::int64_t end) {
    if (!reads_in_long_runs(work.call)) return ahead_of(work.values_of(piece));
    const std::int64_t next = piece.begin + piece.count;
    return work.has_blocks() && next < end ? ahead_of(work.keys_of(work.piece(next, end))) : Ahead{};
}

// The same while its values are added. Short tiles need the keys of the tile after this one.
template <class T>
Ahead while_adding(const Work<T>& work, const Piece& piece, Tile tile) {
    const std::int64_t next = piece.begin + piece.count, end = tile.begin + tile.count;
    if (reads_in_long_runs(work.call)) {
        return work.has_blocks() && next < end ? ahead_of(work.values_of(work.piece(next, end))) : Ahead{};
    }
    const std::int64_t there = piece.begin + tile.count, last = smaller(end + work.tile, work.item.keys.end);
    return there < last ? ahead_of(work.keys_of(work.piece(there, last))) : Ahead{};
}

template <class T>
void score_piece(const Work<T>& work, Tile tile, const Piece& piece, std::int64_t active) {
    Ahead ahead = while_scoring(work, piece, tile.begin + tile.count);
    for (std::int64_t x = 0; x < active; x += most_rows) {
        const int rows = static_cast<int>(smaller(active - x, std::int64_t{most_rows}));
        const Packed<T>* query[most_rows] = {};
        float* scores[most_rows] = {};
        for (int y = 0; y < rows; ++y) {
            query[y] = work.query(work.scratch.active[x + y]);
            scores[y] = work.scores(work.scratch.active[x + y]) + (piece.begin - tile.begin);
        }
        score_rows<T>(rows, work.keys_of(piece), query, scores, ahead);
        ahead.rows = 0;
    }
}

template <class T>
void score_tile(const Work<T>& work, Tile tile, std::int64_t active) {
    const std::int64_t end = tile.begin + tile.count;
    for (std::int64_t begin = tile.begin; begin < end;) {
        const Piece piece = work.piece(begin, end);
        score_piece(work, tile, piece, active);
        begin += piece.count;
    }
}

void copy_scales(const StoredRows& rows, std::int64_t g, std::int64_t index, std::int64_t slot, std::int64_t count,
                 float* to) {
    const auto& stride = rows.scale_stride;
    const float* from = rows.scales + index * stride[0] + g * stride[1] + slot * stride[2];
    for (std::int64_t j = 0; j < count; ++j) to[j] = from[j * stride[2]];
}

// The scales of a tile side by side, as the softmax takes them.
template <class T>
void take_scales(const Work<T>& work, Tile tile) {
    for (std::int64_t done = 0; done < tile.count;) {
        const auto at = work.place(tile.begin + done);
        const std::int64_t count = smaller(at.left, tile.count - done);
        copy_scales(work.segment.key, work.item.g, at.index, at.slot, count, work.scratch.key_scales + done);
        copy_scales(work.segment.value, work.item.g, at.index, at.slot, count, work.scratch.value_scales + done);
        done += count;
    }
}

template <class T>
void weigh_tile(const Work<T>& work, Tile tile, std::int64_t active, bool something_hidden) {
    const float* key_scales = work.has_scales() ? work.scratch.key_scales : nullptr;
    const float* value_scales = work.has_scales() ? work.scratch.value_scales : nullptr;
    for (std::int64_t x = 0; x < active; ++x) {
        const std::int64_t r = work.scratch.active[x];
        const std::uint8_t* visible =
            something_hidden ? work.scratch.visible + r * longest_tile(work.call) : nullptr;
        float* scores = work.scores(r);
        const float tile_largest = finish_scores(work.call, work.scratch.rows[r], tile, visible, key_scales, scores);
        take_in(tile_largest, scores, tile.count, value_scales, work.largest[r], work.totals[r], work.sums_of(r),
                work.sums_width);
    }
}

// The keys that only some rows may touch, one row after the other.
template <class T>
void add_apart(const Work<T>& work, Tile tile, const TileKeys& keys, std::int64_t active) {
    for (std::int64_t k = 0; k < keys.apart_count; ++k) {
        const std::int32_t* key = keys.apart + k;
        const Piece piece = work.piece(tile.begin + *key, tile.begin + *key + 1);
        const TileValues<T> values{work.values_of(piece), *key, key, 1};
        for (std::int64_t x = 0; x < active; ++x) {
            const std::int64_t r = work.scratch.active[x];
            if (work.scratch.visible[r * longest_tile(work.call) + *key] == 0) continue;
            const float* weights = work.scores(r);
            float* sums = work.sums_of(r);
            add_rows<T>(1, values, &weights, &sums, {});
        }
    }
}

template <class T>
void add_piece(const Work<T>& work, const TileValues<T>& values, std::int64_t active, Ahead ahead) {
    for (std::int64_t x = 0; x < active; x += most_rows) {
        const int rows = static_cast<int>(smaller(active - x, std::int64_t{most_rows}));
        const float* weights[most_rows] = {};
        float* sums[most_rows] = {};
        for (int y = 0; y < rows; ++y) {
            weights[y] = work.scores(work.scratch.active[x + y]);
            sums[y] = work.sums_of(work.scratch.active[x + y]);
        }
        add_rows<T>(rows, values, weights, sums, ahead);
        ahead.rows = 0;
    }
}

template <class T>
void add_tile(const Work<T>& work, Tile tile, std::int64_t active, const TileKeys& keys) {
    const std::int64_t end = tile.begin + tile.count;
    std::int64_t listed = 0;
    for (std::int64_t begin = tile.begin; begin < end;) {
        const Piece piece = work.piece(begin, end);
        const std::int64_t from = begin - tile.begin, first = listed;
        begin += piece.count;
        while (listed < keys.together_count && keys.together[listed] < begin - tile.begin) ++listed;
        if (listed == first) continue;
        const TileValues<T> values{work.values_of(piece), from, keys.together + first, listed - first};
        add_piece(work, values, active, while_adding(work, piece, tile));
    }
    if (keys.apart_count != 0) add_apart(work, tile, keys, active);
}

// Whether the value of one key of a tile is made of numbers; codes are, so that their scale decides.
template <class T>
bool has_finite_value(const Work<T>& work, Tile tile, std::int64_t j) {
    if constexpr (is_codes<T>) {
        return work.scratch.value_scales[j] * 0.0f == 0.0f;
    } else {
        const Piece piece = work.piece(tile.begin + j, tile.begin + j + 1);
        return all_finite(work.values_of(piece).row(0), work.call.value_width);
    }
}

template <class T>
void run_stored(const Call& call, const Segment& segment, const DecodeItem& item, std::byte* memory, float* partial) {
    const Work<T> work(call, segment, item, memory, partial);
    begin_rows(work);
    if (!reads_in_long_runs(call)) {
        // What the tile before would have fetched for the first one.
        const Ahead first = ahead_of(work.keys_of(work.piece(item.keys.begin, item.keys.end)));
        for (std::int64_t row = 0; row < smaller(first.rows, work.tile); ++row) first.fetch(row, 0, first.bytes);
    }
    TileKeys keys;
    for (std::int64_t begin = item.keys.begin; begin < item.keys.end; begin += work.tile) {
        const Tile tile{begin, smaller(work.tile, item.keys.end - begin)};
        const std::int64_t active = list_active(work, tile);
        if (active == 0) continue;
        if (work.has_scales()) take_scales(work, tile);
        sort_keys(call, tile, work.scratch, active, keys,
                  [&](std::int64_t j) { return has_finite_value(work, tile, j); });
        if (keys.together_count + keys.apart_count == 0) continue;
        score_tile(work, tile, active);
        weigh_tile(work, tile, active, keys.something_hidden);
        add_tile(work, tile, active, keys);
    }
    for (std::int64_t r = 0; r < work.rows; ++r) order_columns<T>(work.sums_of(r), work.sums_width);
}

}  // namespace

void run_decode_item(const Call& call, const Segment& segment, const DecodeItem& item, std::byte* memory,
                     float* partial) {
#if defined(HEADWISE_SIMD_BF16)
    // For a row or two the way from codes of 8 bits to bfloat16 costs more than pairs of products save. (Measured for
    // width 128: 1 row is slower by a fifth, 4 and 7 rows are faster by 5 to 15 %; with 4 bits all are faster.)
    constexpr std::int64_t few_rows = 2;
    if (call.type == Type::bf16 && segment.storage == Storage::int8 && group_rows(call) > few_rows) {
        return run_stored<PairedInt8>(call, segment, item, memory, partial);
    }
    if (call.type == Type::bf16 && segment.storage == Storage::int4) {
        return run_stored<PairedInt4>(call, segment, item, memory, partial);
    }
#endif
    if (segment.storage == Storage::int8) return run_stored<Int8>(call, segment, item, memory, partial);
    if (segment.storage == Storage::int4) return run_stored<Int4>(call, segment, item, memory, partial);
    if (call.type == Type::f32) return run_stored<float>(call, segment, item, memory, partial);
    if (call.type == Type::bf16) return run_stored<BFloat16>(call, segment, item, memory, partial);
    return run_stored<Half>(call, segment, item, memory, partial);
}

void merge_decoded_row(const Call& call, const float* partials, DecodeSlots slots, std::int64_t b, std::int64_t h,
                       std::int64_t i) {
    const std::int64_t row = h % group_size(call) * call.queries + i;
    const Shares shares = shares_of(call, partials, slots, h, row);
    const Strides& stride = call.output.stride;
    const std::int64_t at = b * stride[0] + h * stride[1] + i * stride[2];
    if (call.type == Type::f32) {
        write_row(call, partials, slots, shares, row, static_cast<float*>(call.output.data) + at);
    } else if (call.type == Type::bf16) {
        write_row(call, partials, slots, shares, row, static_cast<BFloat16*>(call.output.data) + at);
    } else {
        write_row(call, partials, slots, shares, row, static_cast<Half*>(call.output.data) + at);
    }
    if (call.lse != nullptr) {
        const float lse = shares.empty ? -infinity : shares.largest + std::log(shares.total);
        call.lse[(b * call.heads + h) * call.queries + i] = lse;
    }
}

}  // namespace headwise::HEADWISE_ISA
