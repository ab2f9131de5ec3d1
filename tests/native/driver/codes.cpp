#include "codes.hpp"

#include "numbers.hpp"

namespace headwise::driver {
namespace {

// Which block of the pool a sequence has in which place: from the end, so that none lies as it would without a table.
std::int64_t block_of(std::int64_t batch, std::int64_t per_sequence, std::int64_t b, std::int64_t number) {
    return batch * per_sequence - (b * per_sequence + number);
}

CodedRows make_rows(const Shape& shape, int bits, Dice& dice, Place place) {
    CodedRows rows;
    rows.codes = make_tensor(bits == 8 ? Element::i8 : Element::u8, shape, random_strides(shape, dice, true), place);
    const Shape single = {shape[0], shape[1], shape[2], 1};
    rows.scales = make_tensor(Element::f32, single, random_strides(single, dice, true), place);
    return rows;
}

// The code of a column; the first of two codes of 4 bits lies low, and both are stored with 8 added.
void write_code(std::byte* row, int bits, std::int64_t column, std::int64_t code) {
    if (bits == 8) {
        row[column] = static_cast<std::byte>(code);
        return;
    }
    const auto stored = static_cast<unsigned>(code + 8);
    std::byte& both = row[column / 2];
    both = column % 2 == 0 ? (both & std::byte{0xf0}) | static_cast<std::byte>(stored)
                           : (both & std::byte{0x0f}) | static_cast<std::byte>(stored << 4);
}

}  // namespace

SegmentArgument Codes::argument(const std::vector<std::int64_t>& count) const {
    SegmentArgument given;
    given.bits = bits;
    given.key = key.codes.argument, given.value = value.codes.argument;
    given.key_scales = key.scales.argument, given.value_scales = value.scales.argument;
    given.first.assign(count.size(), 0);
    given.count = count;
    given.slot.assign(count.size(), gap);
    if (table) given.table = table->argument;
    return given;
}

Codes make_codes(std::int64_t batch, std::int64_t kv_heads, std::int64_t keys, std::int64_t width,
                 std::int64_t value_width, Dice& dice, Place place) {
    Codes codes;
    codes.bits = dice.one_in(2) ? 8 : 4;
    codes.gap = dice.up_to(3);
    codes.block_size = dice.of({0, 1, 5, 16});
    std::int64_t sequences = batch, slots = keys + codes.gap;
    if (codes.block_size != 0) {
        const std::int64_t per_sequence = (slots + codes.block_size - 1) / codes.block_size;
        codes.table = packed(Element::i64, {batch, per_sequence}, place);
        for (std::int64_t b = 0; b < batch; ++b)
            for (std::int64_t number = 0; number < per_sequence; ++number) {
                const std::int64_t block = block_of(batch, per_sequence, b, number);
                std::memcpy(codes.table->at(0, 0, b, number), &block, sizeof(block));
            }
        sequences = batch * per_sequence + 1, slots = codes.block_size;
    }
    const auto bytes = [&](std::int64_t columns) { return codes.bits == 8 ? columns : (columns + 1) / 2; };
    codes.key = make_rows({sequences, kv_heads, slots, bytes(width)}, codes.bits, dice, place);
    codes.value = make_rows({sequences, kv_heads, slots, bytes(value_width)}, codes.bits, dice, place);
    return codes;
}

void write_codes(const Codes& codes, const CodedRows& rows, std::int64_t b, std::int64_t g, std::int64_t token,
                 Dice& dice, const Tensor& numbers) {
    std::int64_t sequence = b, slot = token + codes.gap;
    if (codes.table) {
        const Shape& shape = codes.table->argument.shape;
        sequence = block_of(shape[0], shape[1], b, slot / codes.block_size);
        slot %= codes.block_size;
    }
    const std::int64_t limit = codes.bits == 8 ? 127 : 7;
    const float scale = static_cast<float>(1.0 + dice.number() / 8) * 2.0f / static_cast<float>(limit);
    std::memcpy(rows.scales.at(sequence, g, slot, 0), &scale, sizeof(scale));
    for (std::int64_t column = 0; column < numbers.argument.shape[3]; ++column) {
        const std::int64_t code = dice.up_to(2 * limit) - limit;
        write_code(rows.codes.at(sequence, g, slot, 0), codes.bits, column, code);
        write_number(Element::f32, static_cast<double>(code) * scale, numbers.at(b, g, token, column));
    }
}

}  // namespace headwise::driver
