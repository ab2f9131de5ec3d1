// What happens to scores between the product of queries and keys and the softmax: soft-cap, bias, ALiBi and masks.
#pragma once

#include "prefill_pack.hpp"

namespace headwise::HEADWISE_ISA {

// What the mask and the bias add to the scores of one panel and tile, [key, lane]: -infinity hides.
struct Added {
    float* data = nullptr;
    bool hides_all = false, changes = false;
};

// `count` numbers of a row, at most `lanes`, that lie `stride` apart.
template <class Stored>
HEADWISE_INLINE Vector read_strided(const Stored* p, std::int64_t stride, std::int64_t count) {
    if (stride == 1) return count >= lanes ? load(p) : load_first(p, count);
    Stored some[lanes];
    for (std::int64_t n = 0; n < count; ++n) some[n] = p[n * stride];
    return load_first(some, count);
}

HEADWISE_INLINE Mask read_mask(const std::uint8_t* p, std::int64_t stride, std::int64_t count) {
    if (stride == 1) return bytes_set(p, count);
    std::uint8_t some[lanes];
    for (std::int64_t n = 0; n < count; ++n) some[n] = p[n * stride];
    return bytes_set(some, count);
}

static Vector read_bias(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t key,
                        std::int64_t count) {
    const std::int64_t stride = call.bias.stride[3], at = key * stride;
    if (call.bias_type == Type::f32) return read_strided(row_of<float>(call.bias, b, h, i) + at, stride, count);
    if (call.bias_type == Type::bf16) return read_strided(row_of<BFloat16>(call.bias, b, h, i) + at, stride, count);
    return read_strided(row_of<Half>(call.bias, b, h, i) + at, stride, count);
}

// What is added to the scores of `count` keys of one row.
static Vector read_added(const Call& call, const Panel& panel, std::int64_t lane, std::int64_t key,
                         std::int64_t count) {
    const std::int64_t b = panel.batch, h = panel.head[lane], i = panel.query[lane];
    Vector addend = zero();
    if (call.bias.data != nullptr) addend = read_bias(call, b, h, i, key, count);
    if (call.mask.data == nullptr) return addend;
    const std::uint8_t* mask = row_of<std::uint8_t>(call.mask, b, h, i) + key * call.mask.stride[3];
    return select(read_mask(mask, call.mask.stride[3], count), addend, broadcast(-infinity));
}

// Whether mask and bias of a lane are those of the lane before it, another head at the same position.
static bool repeats(const Call& call, const Panel& panel, std::int64_t lane) {
    if (lane == 0 || panel.query[lane] != panel.query[lane - 1]) return false;
    return call.mask.stride[1] == 0 && call.bias.stride[1] == 0;
}

// Which lanes of squares hold something else than 0, something else than -infinity: not 0 there.
struct Noticed {
    Vector changed = zero(), shown = zero();

    HEADWISE_INLINE void look(Vector row) {
        const Vector one = broadcast(1.0f);
        changed = maximum(select(equal(row, zero()), zero(), one), changed);
        shown = maximum(select(equal(row, broadcast(-infinity)), zero(), one), shown);
    }
};

// `count` keys of the rows in lanes `from` to from + lanes - 1, to [key, lane].
static void fill_square(const Call& call, const Panel& panel, std::int64_t from, std::int64_t key, std::int64_t count,
                        float* to, Noticed& noticed) {
    Vector rows[lanes];
    for (int n = 0; n < lanes; ++n) {
        rows[n] = zero();
        if (from + n >= panel.rows) continue;
        if (n > 0 && repeats(call, panel, from + n)) {
            rows[n] = rows[n - 1];
            continue;
        }
        rows[n] = read_added(call, panel, from + n, key, count);
        noticed.look(rows[n]);
    }
    transpose(rows);
    for (std::int64_t n = 0; n < count; ++n) store(to + n * panel.width(), rows[n]);
}

// Fills in the keys of `part`, which lie in the tile; where a row's window hides some too, they are hidden later.
static void fill_added(const Call& call, const Panel& panel, KeyRange part, std::int64_t tile_begin, Added& added) {
    Noticed noticed;
    for (std::int64_t from = 0; from < panel.width(); from += lanes) {
        for (std::int64_t key = part.begin; key < part.end; key += lanes) {
            float* to = added.data + (key - tile_begin) * panel.width() + from;
            fill_square(call, panel, from, key, smaller(lanes, part.end - key), to, noticed);
        }
    }
    added.changes = largest(noticed.changed) > 0.0f;
    added.hides_all = largest(noticed.shown) == 0.0f;
}

// Keys [first, last) of a tile in whole strips: those that a panel sees and what lies beside them.
struct Strips {
    std::int64_t first, last;
};

static KeyRange seen_part(const Panel& panel, std::int64_t tile_begin) {
    return {larger(panel.any.begin, tile_begin), smaller(panel.any.end, tile_begin + tile_keys)};
}

static Strips strips_of(KeyRange part, std::int64_t tile_begin) {
    return {(part.begin - tile_begin) / strip * strip, round_up(part.end - tile_begin, strip)};
}

// What every score of a panel and tile goes through, as far as it is asked for.
struct Changes {
    bool capped, added, sloped, ranged;  // ranged: some rows do not see all keys of the strips

    bool any() const { return capped || added || sloped || ranged; }
};

static Changes changes_of(const Call& call, const Panel& panel, std::int64_t tile_begin, Strips strips) {
    Changes changes{};
    changes.capped = call.softcap != 0.0f;
    changes.added = call.mask.data != nullptr || call.bias.data != nullptr;
    changes.sloped = call.slopes != nullptr;
    changes.ranged = panel.all.begin > tile_begin + strips.first || panel.all.end < tile_begin + strips.last;
    return changes;
}

template <int vectors>
struct LaneBounds {
    Vector begin[vectors], end[vectors];    // keys seen, counted from the start of the tile
    Vector position[vectors], slope[vectors];
};

template <int vectors>
static LaneBounds<vectors> lane_bounds(const Call& call, const Panel& panel, std::int64_t tile_begin) {
    float begin[most_rows], end[most_rows], position[most_rows] = {}, slope[most_rows] = {};
    for (std::int64_t lane = 0; lane < vectors * lanes; ++lane) {
        begin[lane] = static_cast<float>(between(panel.keys[lane].begin - tile_begin, 0, tile_keys));
        end[lane] = static_cast<float>(between(panel.keys[lane].end - tile_begin, 0, tile_keys));
        if (lane >= panel.rows) continue;
        position[lane] = static_cast<float>(call.offsets[panel.batch] + panel.query[lane] - tile_begin);
        if (call.slopes == nullptr) continue;
        slope[lane] = call.slopes[panel.batch * call.slopes_batch_stride + panel.head[lane]];
    }
    LaneBounds<vectors> bounds;
    for (int v = 0; v < vectors; ++v) {
        bounds.begin[v] = load(begin + v * lanes);
        bounds.end[v] = load(end + v * lanes);
        bounds.position[v] = load(position + v * lanes);
        bounds.slope[v] = load(slope + v * lanes);
    }
    return bounds;
}

// One vector of scores of one key, counted from the start of the tile.
template <int vectors>
HEADWISE_INLINE Vector changed_score(const Changes& changes, const LaneBounds<vectors>& bounds, int v, Vector cap,
                                     Vector per_cap, Vector key, const float* added, Vector score) {
    const Vector hidden = broadcast(-infinity);
    if (changes.capped) score = cap * tangent(score * per_cap);
    if (changes.sloped) score = score - bounds.slope[v] * absolute(bounds.position[v] - key);
    if (changes.added) {
        const Vector addend = load(added);
        score = select(equal(addend, hidden), hidden, score + addend);
    }
    if (changes.ranged) {
        score = select(less(key, bounds.begin[v]), hidden, score);
        score = select(less(key, bounds.end[v]), score, hidden);
    }
    return score;
}

// Changes the scores [key, lane] of the strips in place, and finds their largest.
template <int vectors>
static void change_scores(const Call& call, const Panel& panel, const Changes& changes, const float* added,
                          std::int64_t tile_begin, Strips strips, float* scores, Vector (&largest)[vectors]) {
    const LaneBounds<vectors> bounds = lane_bounds<vectors>(call, panel, tile_begin);
    const Vector cap = broadcast(call.softcap), per_cap = broadcast(changes.capped ? 1.0f / call.softcap : 0.0f);
    for (int v = 0; v < vectors; ++v) largest[v] = broadcast(-infinity);
    for (std::int64_t j = strips.first; j < strips.last; ++j) {
        const Vector key = broadcast(static_cast<float>(j));
        for (int v = 0; v < vectors; ++v) {
            const std::int64_t at = (j * vectors + v) * lanes;
            const Vector score =
                changed_score(changes, bounds, v, cap, per_cap, key, added + at, load(scores + at));
            largest[v] = maximum(score, largest[v]);
            store(scores + at, score);
        }
    }
}

}  // namespace headwise::HEADWISE_ISA
