// Dot products of queries and keys: blocks of rows x keys whose sums stay in registers, so that a key is loaded and
// widened once for up to most_rows rows.
#pragma once

#include "columns.hpp"
#include "decode.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

#if defined(HEADWISE_SIMD_AVX512)
inline constexpr int most_rows = 8, most_sums = 24;  // rows of a block; registers for sums of values
#elif defined(HEADWISE_SIMD_NEON)
inline constexpr int most_rows = 4, most_sums = 16;
#else
inline constexpr int most_rows = 4, most_sums = 12;
#endif

// What is wanted next: `bytes` of each row of keys while values are added, and of values while keys are. It is fetched
// into the second-level cache a few lines at a time, evenly over the work. (Measured with 4 rows: without it, or into
// the first level, reading is slower by a quarter to a half.)
struct Ahead {
    const std::byte* data = nullptr;
    std::int64_t stride = 0, rows = 0, bytes = 0;

    // The lines of one row that begin at or after `from` and before `to`.
    HEADWISE_INLINE void fetch(std::int64_t row, std::int64_t from, std::int64_t to) const {
#if defined(__GNUC__)
        if (row >= rows) return;
        const std::byte* line = data + row * stride;
        // Units of codes are shorter than a line.
        for (std::int64_t at = rounded_up(from, 64); at < smaller(to, bytes); at += 64) {
            __builtin_prefetch(line + at, 0, 2);
        }
#else
        static_cast<void>(row);
        static_cast<void>(from);
        static_cast<void>(to);
#endif
    }
};

template <class T>
inline constexpr bool as_pairs = has_pairs && (std::is_same_v<T, BFloat16> || std::is_same_v<T, PairedInt8> ||
                                               std::is_same_v<T, PairedInt4>);

// How a query lies in scratch for keys of type T: bfloat16 where dot products take pairs of them, float32 otherwise.
template <class T>
using Packed = std::conditional_t<as_pairs<T>, BFloat16, float>;

// A query of type Q in the order of the columns of T; what is missing to whole units is 0.
template <class T, class Q>
void pack_query(const Q* query, std::int64_t width, Packed<T>* to) {
    for (std::int64_t at = 0; at < padded(width); at += column_unit) {
        const std::int64_t left = smaller(larger(width - at, std::int64_t{0}), column_unit);
        if constexpr (as_pairs<T>) {
            for (std::int64_t i = 0; i < column_unit; ++i) {
                to[at + (is_int4<T> ? i / 2 + i % 2 * lanes : i)] = i < left ? query[at + i] : BFloat16{0};
            }
        } else if constexpr (std::is_same_v<T, Q>) {
            const Columns columns = load_columns_first(query + at, left);
            store(to + at, columns.a);
            store(to + at + lanes, columns.b);
        } else {
            float in_order[column_unit];
            store(in_order, load_first(query + at, smaller(left, std::int64_t{lanes})));
            store(in_order + lanes, load_first(query + at + lanes, larger(left - lanes, std::int64_t{0})));
            for (std::int64_t i = 0; i < column_unit; ++i) {
                to[at + (even_and_odd<T> ? i / 2 + i % 2 * lanes : i)] = in_order[i];
            }
        }
    }
}

// Adds the products of one unit of columns (the first n of them) of all rows and keys of a block.
template <int rows, int keys, bool whole, class T>
HEADWISE_INLINE void add_products(const Packed<T>* const* query, const T* const* key, std::int64_t at, std::int64_t n,
                                  Vector* sums) {
    if constexpr (as_pairs<T>) {
#if defined(HEADWISE_SIMD_BF16)
        Pairs k[keys];
        HEADWISE_UNROLL
        for (int x = 0; x < keys; ++x) {
            const T* from = at_column(key[x], at);
            k[x] = whole ? load_pairs(from) : load_pairs_first(from, n);
        }
        HEADWISE_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Pairs q = load_pairs(query[r] + at);
            HEADWISE_UNROLL
            for (int x = 0; x < keys; ++x) sums[r * keys + x] = dot_pairs(sums[r * keys + x], q, k[x]);
        }
#endif
    } else {
        Columns k[keys];
        HEADWISE_UNROLL
        for (int x = 0; x < keys; ++x) {
            const T* from = at_column(key[x], at);
            k[x] = whole ? load_columns(from) : load_columns_first(from, n);
        }
        HEADWISE_UNROLL
        for (int r = 0; r < rows; ++r) {
            const Vector a = load(query[r] + at), b = load(query[r] + at + lanes);
            HEADWISE_UNROLL
            for (int x = 0; x < keys; ++x) {
                sums[r * keys + x] = fused(b, k[x].b, fused(a, k[x].a, sums[r * keys + x]));
            }
        }
    }
}

// The same for all columns, key after key, as they lie in memory.
template <int rows, int keys, class T>
HEADWISE_INLINE void one_by_one(const Packed<T>* const* query, const T* const* key, std::int64_t j, std::int64_t width,
                                Vector* sums, const Ahead& ahead) {
    const std::int64_t whole = width / column_unit * column_unit;
    HEADWISE_UNROLL
    for (int x = 0; x < keys; ++x) {
        Vector one[rows];
        HEADWISE_UNROLL
        for (int r = 0; r < rows; ++r) one[r] = zero();
        for (std::int64_t at = 0; at < whole; at += column_unit) {
            add_products<rows, 1, true>(query, key + x, at, column_unit, one);
        }
        if (whole < width) add_products<rows, 1, false>(query, key + x, whole, width - whole, one);
        ahead.fetch(j + x, 0, ahead.bytes);
        HEADWISE_UNROLL
        for (int r = 0; r < rows; ++r) sums[r * keys + x] = one[r];
    }
}

// Keys or values that lie one after the other in memory, `stride` bytes apart.
template <class T>
struct Rows {
    const std::byte* data;
    std::int64_t stride, width, count;

    HEADWISE_INLINE const T* row(std::int64_t j) const { return reinterpret_cast<const T*>(data + j * stride); }
};

// The dot products of `rows` queries with some keys; the last block repeats the last key, so that up to 15 numbers
// behind the last score are written as well.
template <int rows, class T>
void score_block(const Rows<T>& key, const Packed<T>* const* query, float* const* scores, const Ahead& ahead) {
    constexpr int fit = lanes / rows;
    constexpr int keys = fit >= 16 ? 16 : fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    static_assert(rows * keys <= lanes && 16 % keys == 0);  // tiles are multiples of 16
    const std::int64_t width = key.width, count = key.count, whole = width / column_unit * column_unit;
    for (std::int64_t j = 0; j < count; j += keys) {
        const T* of[keys];
        for (int x = 0; x < keys; ++x) of[x] = key.row(smaller(j + x, count - 1));
        Vector sums[lanes];
        HEADWISE_UNROLL
        for (int i = 0; i < lanes; ++i) sums[i] = zero();
        if constexpr (rows == 1) {
            one_by_one<rows, keys>(query, of, j, width, sums, ahead);
        } else {
            for (std::int64_t at = 0; at < whole; at += column_unit) {
                HEADWISE_UNROLL
                for (int x = 0; x < keys; ++x) {
                    ahead.fetch(j + x, bytes_of_columns<T>(at), bytes_of_columns<T>(at + column_unit));
                }
                add_products<rows, keys, true>(query, of, at, column_unit, sums);
            }
            if (whole < width) add_products<rows, keys, false>(query, of, whole, width - whole, sums);
            for (int x = 0; x < keys; ++x) ahead.fetch(j + x, bytes_of_columns<T>(whole), ahead.bytes);
        }
        float together[lanes];
        store(together, transposed_sums(sums));
        HEADWISE_UNROLL
        for (int r = 0; r < rows; ++r) {
            HEADWISE_UNROLL
            for (int x = 0; x < keys; ++x) scores[r][j + x] = together[r * keys + x];
        }
    }
}

template <class T>
void score_rows(int rows, const Rows<T>& key, const Packed<T>* const* query, float* const* scores,
                const Ahead& ahead) {
    switch (rows) {
        case 1: return score_block<1>(key, query, scores, ahead);
        case 2: return score_block<2>(key, query, scores, ahead);
        case 3: return score_block<3>(key, query, scores, ahead);
        case 4: return score_block<4>(key, query, scores, ahead);
        default: break;
    }
    if constexpr (most_rows > 4) {
        switch (rows) {
            case 5: return score_block<5>(key, query, scores, ahead);
            case 6: return score_block<6>(key, query, scores, ahead);
            case 7: return score_block<7>(key, query, scores, ahead);
            default: return score_block<8>(key, query, scores, ahead);
        }
    }
}

}  // namespace
}  // namespace headwise::HEADWISE_ISA
