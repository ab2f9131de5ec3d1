// Keys and values of a problem as codes with scales, in a row or in blocks.
#pragma once

#include "segment_arguments.hpp"
#include "tensor.hpp"

namespace headwise::driver {

// Keys, or values.
struct CodedRows {
    Tensor codes, scales;  // [B or blocks, G, slots, bytes of a row], [B or blocks, G, slots, 1]
};

struct Codes {
    int bits = 8;
    std::int64_t gap = 0;         // slots before the first token
    std::int64_t block_size = 0;  // 0: no blocks
    CodedRows key, value;
    std::optional<Tensor> table;  // [B, blocks of a sequence]

    // As the kernels get them; `count` tokens of each sequence.
    SegmentArgument argument(const std::vector<std::int64_t>& count) const;
};

// Where they will lie. Until it is written a scale is NaN, and so are what lies between the rows and other blocks.
Codes make_codes(std::int64_t batch, std::int64_t kv_heads, std::int64_t keys, std::int64_t width,
                 std::int64_t value_width, Dice& dice, Place place);

// Random codes for one row; to `numbers`, which has that row in float32, what they stand for.
void write_codes(const Codes& codes, const CodedRows& rows, std::int64_t b, std::int64_t g, std::int64_t token,
                 Dice& dice, const Tensor& numbers);

}  // namespace headwise::driver
