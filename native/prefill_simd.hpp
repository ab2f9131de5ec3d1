// What prefill needs beyond simd.hpp: the sizes of its register blocks, products in float32 or in pairs of bfloat16,
// and an exponential for numbers that are not positive.
//
// Query rows lie in the lanes of vectors, keys (for scores) and columns of the values (for outputs) run through memory:
// each is broadcast to all lanes. So a softmax needs no sums across lanes, and keys need not be transposed.
#pragma once

#include <cstring>

#include "prefill_transpose.hpp"

namespace headwise::HEADWISE_ISA {

// A register block holds `strip` keys, or columns of the values, times at most `most_vectors` vectors of query rows;
// beside it fit those vectors once more and one broadcast.
#if defined(HEADWISE_SIMD_AVX512) || defined(HEADWISE_SIMD_NEON)  // 32 registers
inline constexpr int strip = 8, most_vectors = 3;
#elif defined(HEADWISE_SIMD_AVX2)  // 16 registers
inline constexpr int strip = 4, most_vectors = 3;
#else
inline constexpr int strip = 4, most_vectors = 2;
#endif

inline constexpr int most_rows = most_vectors * lanes;

HEADWISE_INLINE std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }
HEADWISE_INLINE std::int64_t between(std::int64_t n, std::int64_t low, std::int64_t high) {
    return smaller(larger(n, low), high);
}

// e^v for v <= 0, to 1.5 units in the last place; 0 where the result would be subnormal, which slows down some
// processors; NaN for NaN. It is 2^n e^r with |r| <= ln 2 / 2 and e^r = 1 + r P(r), P of least largest relative error
// (9e-8), fitted for this. r is taken from v, not from its product with log2(e), whose rounding would count |v| / 2
// units.
HEADWISE_INLINE Vector exponential_below_one(Vector v) {
    const Vector power = v * broadcast(1.44269504f);
    const Vector n = nearest(power), r = fused(n, broadcast(-0.693147182f), v);
    Vector p = broadcast(8.29031472e-3f);
    p = fused(p, r, broadcast(4.18979293e-2f));
    p = fused(p, r, broadcast(1.66676362e-1f));
    p = fused(p, r, broadcast(4.99991496e-1f));
    p = fused(p, r, broadcast(9.99999708e-1f));
    p = fused(p, r, broadcast(1.0f));
    // What lies below, -infinity included, made nonsense of n and r.
    return select(less(power, broadcast(-125.5f)), zero(), times_power(p, n));
}

template <class Stored>
static float widen_one(const Stored* p) {
    float widened[lanes];
    store(widened, load_first(p, 1));
    return widened[0];
}

// Products of float32: what is read as bfloat16 or half is widened first.
struct Single {
    using Element = float;
    using Operand = Vector;
    static constexpr int depth = 1;  // how many products one accumulation adds to a lane

    HEADWISE_INLINE static Operand read(const Element* p) { return load(p); }
    HEADWISE_INLINE static Operand repeat(const Element* p) { return broadcast(*p); }
    // The next operands of one row, each a broadcast's worth; zeros behind the first `count` elements.
    template <class Stored>
    HEADWISE_INLINE static Vector next(const Stored* p, std::int64_t count) {
        return count >= lanes ? load(p) : load_first(p, count);
    }
    HEADWISE_INLINE static Vector accumulate(Vector sum, Operand a, Operand b) { return fused(a, b, sum); }

    static bool all_finite(const Element* row, std::int64_t count) {
        std::uint32_t worst = 0;
        for (std::int64_t d = 0; d < count; ++d) {
            std::uint32_t bits;
            std::memcpy(&bits, row + d, sizeof bits);
            bits &= 0x7fffffffu;
            worst = bits > worst ? bits : worst;
        }
        return worst < 0x7f800000u;
    }
    // The weight of a key and lane among those that weigh_keys wrote.
    static float weight(const Element* weights, std::int64_t key, std::int64_t lane, std::int64_t width) {
        return weights[key * width + lane];
    }
};

#if defined(HEADWISE_SIMD_BF16)
// Products of pairs of bfloat16, summed in float32.
struct Paired {
    using Element = BFloat16;
    using Operand = Pairs;
    static constexpr int depth = 2;

    HEADWISE_INLINE static Operand read(const Element* p) { return load_pairs(p); }
    HEADWISE_INLINE static Operand repeat(const Element* p) {
        std::int32_t both_bits;
        std::memcpy(&both_bits, p, sizeof both_bits);
        return {(__m512bh)_mm512_set1_epi32(both_bits)};
    }
    HEADWISE_INLINE static Vector next(const Element* p, std::int64_t count) {  // the bits of each pair as one float32
        return {(__m512)(count >= 2 * lanes ? load_pairs(p) : load_pairs_first(p, count)).raw};
    }
    HEADWISE_INLINE static Vector accumulate(Vector sum, Operand a, Operand b) { return dot_pairs(sum, a, b); }

    // Lane i holds even[i] and odd[i], rounded to bfloat16.
    HEADWISE_INLINE static Operand interleave(Vector even, Vector odd) {
        alignas(64) static constexpr std::uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        const __m512i side_by_side = (__m512i)pack_pairs(even, odd).raw;
        return {(__m512bh)_mm512_permutexvar_epi16(_mm512_load_si512(order), side_by_side)};
    }
    HEADWISE_INLINE static Operand ones() { return {(__m512bh)_mm512_set1_epi32(0x3f803f80)}; }
    static bool all_finite(const Element* row, std::int64_t count) {
        std::uint16_t worst = 0;
        for (std::int64_t d = 0; d < count; ++d) {
            const auto bits = static_cast<std::uint16_t>(row[d].bits & 0x7fffu);
            worst = bits > worst ? bits : worst;
        }
        return worst < 0x7f80u;
    }
    static float weight(const Element* weights, std::int64_t key, std::int64_t lane, std::int64_t width) {
        return widen_one(weights + (key / 2 * width + lane) * 2 + key % 2);
    }

    HEADWISE_INLINE static void write(Element* p, Operand pairs) { _mm512_storeu_si512(p, (__m512i)pairs.raw); }
};
#endif

}  // namespace headwise::HEADWISE_ISA
