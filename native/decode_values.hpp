// Weighted sums of values: blocks of rows x columns whose sums stay in registers while the keys of a tile go by.
#pragma once

#include "decode_scores.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

// Values that lie one after the other, and which of them to add: places within the tile, of which the first is `from`.
template <class T>
struct TileValues {
    Rows<T> rows;
    std::int64_t from;
    const std::int32_t* keys;
    std::int64_t count;
};

// sums[r][at ...] += weights[r][j] * value[j][at ...] for all keys j of the list; `n` columns, or all of the block's.
template <int rows, int units, bool whole, class T>
void add_block(const TileValues<T>& values, const float* const* weights, float* const* sums, std::int64_t at,
               std::int64_t n, const Ahead& ahead) {
    static_assert(whole || units == 1);
    const std::int64_t byte = bytes_of_columns<T>(at);
    const std::int64_t end_byte = whole ? bytes_of_columns<T>(at + units * column_unit) : ahead.bytes;
    Columns total[rows][units];
    HEADWISE_UNROLL
    for (int r = 0; r < rows; ++r) {
        HEADWISE_UNROLL
        for (int u = 0; u < units; ++u) {
            const float* from = sums[r] + at + u * column_unit;
            total[r][u] = {load(from), load(from + lanes)};
        }
    }
    for (std::int64_t x = 0; x < values.count; ++x) {
        const std::int64_t j = values.keys[x];
        const T* value = at_column(values.rows.row(j - values.from), at);
        ahead.fetch(j - values.from, byte, end_byte);
        Vector weight[rows];
        HEADWISE_UNROLL
        for (int r = 0; r < rows; ++r) weight[r] = broadcast(weights[r][j]);
        HEADWISE_UNROLL
        for (int u = 0; u < units; ++u) {
            const Columns v = whole ? load_columns(at_column(value, u * column_unit)) : load_columns_first(value, n);
            HEADWISE_UNROLL
            for (int r = 0; r < rows; ++r) {
                total[r][u].a = fused(weight[r], v.a, total[r][u].a);
                total[r][u].b = fused(weight[r], v.b, total[r][u].b);
            }
        }
    }
    HEADWISE_UNROLL
    for (int r = 0; r < rows; ++r) {
        HEADWISE_UNROLL
        for (int u = 0; u < units; ++u) {
            float* to = sums[r] + at + u * column_unit;
            store(to, total[r][u].a);
            store(to + lanes, total[r][u].b);
        }
    }
}

template <int rows, class T>
void add_columns(const TileValues<T>& values, const float* const* weights, float* const* sums, const Ahead& ahead) {
    const std::int64_t width = values.rows.width, whole = width / column_unit * column_unit;
    std::int64_t at = 0;
    const auto blocks = [&]<int units>() {
        if constexpr (2 * units * rows <= most_sums) {
            for (; at + units * column_unit <= whole; at += units * column_unit) {
                add_block<rows, units, true>(values, weights, sums, at, 0, ahead);
            }
        }
    };
    blocks.template operator()<4>();
    blocks.template operator()<2>();
    blocks.template operator()<1>();
    if (at < width) add_block<rows, 1, false>(values, weights, sums, at, width - at, ahead);
}

template <class T>
void add_rows(int rows, const TileValues<T>& values, const float* const* weights, float* const* sums,
              const Ahead& ahead) {
    switch (rows) {
        case 1: return add_columns<1>(values, weights, sums, ahead);
        case 2: return add_columns<2>(values, weights, sums, ahead);
        case 3: return add_columns<3>(values, weights, sums, ahead);
        case 4: return add_columns<4>(values, weights, sums, ahead);
        default: break;
    }
    if constexpr (most_rows > 4) {
        switch (rows) {
            case 5: return add_columns<5>(values, weights, sums, ahead);
            case 6: return add_columns<6>(values, weights, sums, ahead);
            case 7: return add_columns<7>(values, weights, sums, ahead);
            default: return add_columns<8>(values, weights, sums, ahead);
        }
    }
}

// Whether all columns of one value are numbers. Infinity and NaN times 0 is NaN, and the sum of such products shows it.
template <class T>
bool all_finite(const T* value, std::int64_t width) {
    const std::int64_t whole = width / lanes * lanes;
    Vector total = zero();
    for (std::int64_t at = 0; at < whole; at += lanes) total = fused(load(value + at), zero(), total);
    if (whole < width) total = fused(load_first(value + whole, width - whole), zero(), total);
    return sum(total) == 0.0f;
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
