// Random calls of attention whose tensors lie in memory of their own, not a byte larger than they need.
#pragma once

#include <string>
#include <vector>

#include "codes.hpp"
#include "tensor.hpp"

namespace headwise::driver {

struct Sizes {
    std::int64_t batch, heads, kv_heads, queries, keys, width, value_width;
};

struct Problem {
    Sizes sizes{};
    Element element{};
    Tensor query, key, value, output, lse;  // with codes, key and value are what they stand for, in float32
    std::optional<Codes> codes;
    std::optional<Tensor> mask, bias, sinks, slopes;
    std::vector<std::int64_t> offsets;
    std::optional<std::vector<std::int64_t>> key_lengths, left, right;
    float scale = 1.0f, softcap = 0.0f;
    int threads = 1;
    bool has_nan = false;  // among keys and values that are seen

    Arguments arguments() const;
    SegmentArguments segments() const;  // of the codes
    std::string name() const;
    // Whether window, key length and mask let query i of head h see key j.
    bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
    void clear_results() const;  // to NaN
};

// The same seed gives the same problem. Keys and values that no query sees are NaN, and so is what lies between rows.
// `missing` elements at the end of keys and values are said to be there and are not: a planted error.
Problem make_problem(std::uint64_t seed, Place place, std::int64_t missing = 0);

}  // namespace headwise::driver
