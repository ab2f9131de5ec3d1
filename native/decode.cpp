// One item of decoding and the merging of items, compiled once per instruction set.
#include "decode.hpp"

#include <cmath>

#include "decode_kernels.hpp"
#include "decode_values.hpp"
#include "decode_visible.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

std::int64_t type_bytes(Type type) { return type == Type::f32 ? 4 : 2; }

DecodeRow row_at(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i) {
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

// One item at work: what stays the same from tile to tile.
template <class T>
struct Work {
    const Call& call;
    const DecodeItem& item;
    DecodeScratch scratch;
    std::int64_t rows, tile, query_width, sums_width;
    float *largest, *totals, *sums;  // [rows], [rows], [rows, sums_width]: the partial result
    const T *key, *value;            // at key 0

    Work(const Call& of, const DecodeItem& one, std::byte* memory, float* partial)
        : call(of),
          item(one),
          scratch(decode_scratch(of, memory)),
          rows(group_rows(of)),
          tile(tile_keys(of)),
          query_width(padded(of.width)),
          sums_width(padded(of.value_width)),
          largest(partial),
          totals(partial + rows),
          sums(partial + 2 * rows),
          key(row_of<T>(of.key, one.b, one.g, 0)),
          value(row_of<T>(of.value, one.b, one.g, 0)) {}

    const Packed<T>* query(std::int64_t r) const {
        return reinterpret_cast<const Packed<T>*>(scratch.query) + r * query_width;
    }
    float* scores(std::int64_t r) const { return scratch.scores + r * tile; }
    float* sums_of(std::int64_t r) const { return sums + r * sums_width; }
};

template <class T>
void begin_rows(const Work<T>& work) {
    const Call& call = work.call;
    const std::int64_t first_head = work.item.g * group_size(call);
    for (std::int64_t r = 0; r < work.rows; ++r) {
        const std::int64_t h = first_head + r / call.queries, i = r % call.queries;
        work.scratch.rows[r] = row_at(call, work.item.b, h, i);
        pack_query(row_of<T>(call.query, work.item.b, h, i), call.width,
                   reinterpret_cast<Packed<T>*>(work.scratch.query) + r * work.query_width);
        work.largest[r] = -infinity;
        work.totals[r] = 0.0f;
        for (std::int64_t at = 0; at < work.sums_width; at += lanes) store(work.sums_of(r) + at, zero());
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

template <class T>
Ahead keys_ahead(const Work<T>& work, Tile tile) {
    if (reads_in_long_runs(work.call)) return {};
    const std::int64_t next = tile.begin + tile.count, stride = work.call.key.stride[2];
    const auto size = static_cast<std::int64_t>(sizeof(T));
    return {reinterpret_cast<const std::byte*>(work.key + next * stride), stride * size,
            smaller(work.tile, work.item.keys.end - next), work.call.width * size};
}

template <class T>
Ahead values_ahead(const Work<T>& work, Tile tile) {
    if (reads_in_long_runs(work.call)) return {};
    const std::int64_t stride = work.call.value.stride[2];
    const auto size = static_cast<std::int64_t>(sizeof(T));
    return {reinterpret_cast<const std::byte*>(work.value + tile.begin * stride), stride * size, tile.count,
            work.call.value_width * size};
}

template <class T>
void score_tile(const Work<T>& work, Tile tile, std::int64_t active) {
    const T* key = work.key + tile.begin * work.call.key.stride[2];
    Ahead ahead = values_ahead(work, tile);
    for (std::int64_t x = 0; x < active; x += most_rows) {
        const int rows = static_cast<int>(smaller(active - x, std::int64_t{most_rows}));
        const Packed<T>* query[most_rows] = {};
        float* scores[most_rows] = {};
        for (int y = 0; y < rows; ++y) {
            query[y] = work.query(work.scratch.active[x + y]);
            scores[y] = work.scores(work.scratch.active[x + y]);
        }
        score_rows<T>(rows, work.call, key, tile.count, query, scores, ahead);
        ahead.rows = 0;
    }
}

template <class T>
void weigh_tile(const Work<T>& work, Tile tile, std::int64_t active, bool something_hidden) {
    for (std::int64_t x = 0; x < active; ++x) {
        const std::int64_t r = work.scratch.active[x];
        const std::uint8_t* visible = something_hidden ? work.scratch.visible + r * work.tile : nullptr;
        float* scores = work.scores(r);
        const float tile_largest = finish_scores(work.call, work.scratch.rows[r], tile, visible, scores);
        take_in(tile_largest, scores, tile.count, work.largest[r], work.totals[r], work.sums_of(r), work.sums_width);
    }
}

// The keys that only some rows may touch, one row after the other.
template <class T>
void add_apart(const Work<T>& work, const TileKeys& keys, TileValues<T> values, std::int64_t active) {
    values.count = 1;
    for (std::int64_t k = 0; k < keys.apart_count; ++k) {
        values.keys = keys.apart + k;
        for (std::int64_t x = 0; x < active; ++x) {
            const std::int64_t r = work.scratch.active[x];
            if (work.scratch.visible[r * work.tile + keys.apart[k]] == 0) continue;
            const float* weights = work.scores(r);
            float* sums = work.sums_of(r);
            add_rows<T>(1, values, work.call.value_width, &weights, &sums, {});
        }
    }
}

template <class T>
void add_tile(const Work<T>& work, Tile tile, std::int64_t active, const TileKeys& keys) {
    const std::int64_t stride = work.call.value.stride[2];
    TileValues<T> values{work.value + tile.begin * stride, stride, keys.together, keys.together_count};
    Ahead ahead = keys_ahead(work, tile);
    for (std::int64_t x = 0; x < active; x += most_rows) {
        const int rows = static_cast<int>(smaller(active - x, std::int64_t{most_rows}));
        const float* weights[most_rows] = {};
        float* sums[most_rows] = {};
        for (int y = 0; y < rows; ++y) {
            weights[y] = work.scores(work.scratch.active[x + y]);
            sums[y] = work.sums_of(work.scratch.active[x + y]);
        }
        add_rows<T>(rows, values, work.call.value_width, weights, sums, ahead);
        ahead.rows = 0;
    }
    if (keys.apart_count != 0) add_apart(work, keys, values, active);
}

template <class T>
void run_typed(const Call& call, const DecodeItem& item, std::byte* memory, float* partial) {
    const Work<T> work(call, item, memory, partial);
    begin_rows(work);
    // What the tile before would have fetched for the first one.
    const Ahead first = keys_ahead(work, {item.keys.begin, 0});
    for (std::int64_t row = 0; row < first.rows; ++row) first.fetch(row, 0, first.bytes);
    TileKeys keys;
    for (std::int64_t begin = item.keys.begin; begin < item.keys.end; begin += work.tile) {
        const Tile tile{begin, smaller(work.tile, item.keys.end - begin)};
        const std::int64_t active = list_active(work, tile);
        if (active == 0) continue;
        sort_keys(call, tile, work.scratch, active, work.value + begin * call.value.stride[2], keys);
        if (keys.together_count + keys.apart_count == 0) continue;
        score_tile(work, tile, active);
        weigh_tile(work, tile, active, keys.something_hidden);
        add_tile(work, tile, active, keys);
    }
    for (std::int64_t r = 0; r < work.rows; ++r) order_columns<T>(work.sums_of(r), work.sums_width);
}

// How much each slot counts for one row, and the whole denominator.
struct Shares {
    float weight[most_slots];
    float largest = -infinity, total = 0.0f;
    bool empty = true;  // no key, or only scores of -infinity
};

float exponential_of(float x) {
    float result[lanes];
    store(result, exponential(broadcast(x)));
    return result[0];
}

Shares shares_of(const Call& call, const float* partials, DecodeSlots slots, std::int64_t h, std::int64_t row) {
    Shares shares;
    const std::int64_t rows = group_rows(call), size = partial_floats(call);
    for (std::int64_t s = 0; s < slots.count; ++s) {
        const float* partial = partials + (slots.first + s) * size;
        if (partial[rows + row] == 0.0f) continue;
        shares.empty = false;
        shares.largest = larger(shares.largest, partial[row]);
    }
    if (shares.empty) return shares;
    if (call.sinks != nullptr) {
        shares.largest = larger(shares.largest, call.sinks[h]);
        shares.total = exponential_of(call.sinks[h] - shares.largest);
    }
    for (std::int64_t s = 0; s < slots.count; ++s) {
        const float* partial = partials + (slots.first + s) * size;
        const bool counts = partial[rows + row] != 0.0f;
        shares.weight[s] = counts ? exponential_of(partial[row] - shares.largest) : 0.0f;
        if (counts) shares.total += partial[rows + row] * shares.weight[s];
    }
    return shares;
}

template <class T>
void write_row(const Call& call, const float* partials, DecodeSlots slots, const Shares& shares, std::int64_t row,
               T* output) {
    const std::int64_t width = call.value_width, size = partial_floats(call);
    const float* sums = partials + slots.first * size + 2 * group_rows(call) + row * padded(width);
    const Vector total = broadcast(shares.total);
    for (std::int64_t at = 0; at < width; at += lanes) {
        Vector merged = zero();
        for (std::int64_t s = 0; s < slots.count && !shares.empty; ++s) {
            merged = fused(broadcast(shares.weight[s]), load(sums + s * size + at), merged);
        }
        if (!shares.empty) merged = merged / total;
        if (width - at >= lanes) store(output + at, merged);
        else store_first(output + at, merged, width - at);
    }
}

}  // namespace

void run_decode_item(const Call& call, const DecodeItem& item, std::byte* memory, float* partial) {
    if (call.type == Type::f32) return run_typed<float>(call, item, memory, partial);
    if (call.type == Type::bf16) return run_typed<BFloat16>(call, item, memory, partial);
    return run_typed<Half>(call, item, memory, partial);
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
