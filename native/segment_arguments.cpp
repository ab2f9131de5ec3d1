#include "segment_arguments.hpp"

#include <algorithm>

#include "argument_checks.hpp"
#include "decode.hpp"

namespace headwise {
namespace {

Element element_of(int bits, Type type) {
    if (bits == 0) return static_cast<Element>(type);
    return bits == 8 ? Element::i8 : Element::u8;
}

Storage storage_of(int bits) { return bits == 0 ? Storage::plain : bits == 8 ? Storage::int8 : Storage::int4; }

// Strides of an axis that is never stepped along count as 0.
std::array<std::int64_t, 3> strides_of(const TensorArgument& tensor, std::int64_t unit) {
    std::array<std::int64_t, 3> strides{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
        strides[axis] = tensor.shape[axis] == 1 ? 0 : tensor.stride[axis] * unit;
    }
    return strides;
}

const float* checked_scales(const std::string& name, const TensorArgument& scales, const Shape& rows) {
    check_element(name, scales, Element::f32);
    check_shape(name, scales, "a scale for each row", {rows[0], rows[1], rows[2], 1});
    check_memory(name, scales);
    return static_cast<const float*>(scales.data);
}

StoredRows checked_rows(const std::string& name, const TensorArgument& rows,
                        const std::optional<TensorArgument>& scales, int bits, Type type, std::int64_t width) {
    if (rows.shape.size() != 4) refuse(name, "[B or blocks, G, slots, width]", text_of(rows.shape));
    check_element(name, rows, element_of(bits, type));
    check_memory(name, rows);
    check_last_axis(name, rows);
    const std::int64_t bytes = row_bytes(storage_of(bits), type, width), size = bytes_of(rows.element);
    const Shape& shape = rows.shape;
    check_shape(name, rows, "rows of the call's width", {shape[0], shape[1], shape[2], bytes / size});
    if (scales.has_value() != (bits != 0)) {
        refuse(name, bits == 0 ? "no scales for plain numbers" : "scales for its codes", scales ? "some" : "none");
    }
    StoredRows stored;
    stored.data = static_cast<const std::byte*>(rows.data);
    stored.stride = strides_of(rows, size);
    if (scales) {
        stored.scales = checked_scales(name + " scales", *scales, shape);
        stored.scale_stride = strides_of(*scales, 1);
    }
    return stored;
}

// Positions first to first + count - 1 behind those of the segments before.
void check_positions(const std::string& name, const SegmentArgument& given, const Call& call,
                     std::vector<std::int64_t>& ends) {
    check_count(name + " first", given.first, "B", call.batch);
    check_count(name + " count", given.count, "B", call.batch);
    check_count(name + " slot", given.slot, "B", call.batch);
    for (std::size_t b = 0; b < given.first.size(); ++b) {
        const std::int64_t first = given.first[b], count = given.count[b];
        if (count == 0) continue;
        if (count < 0 || first < ends[b] || first > call.keys || count > call.keys - first) {
            refuse(name, "positions from " + std::to_string(ends[b]) + " to " + std::to_string(call.keys),
                   std::to_string(count) + " from " + std::to_string(first));
        }
        ends[b] = first + count;
    }
}

void check_slots(const std::string& name, const SegmentArgument& given, std::int64_t slots) {
    for (std::size_t b = 0; b < given.slot.size(); ++b) {
        const std::int64_t slot = given.slot[b], count = given.count[b];
        if (count == 0) continue;
        if (slot < 0 || slot > slots || count > slots - slot) {
            refuse(name, "slots from 0 to " + std::to_string(slots - 1),
                   std::to_string(count) + " from " + std::to_string(slot));
        }
    }
}

void check_blocks(const std::string& name, const SegmentArgument& given, const BlockTable& table,
                  std::int64_t blocks) {
    for (std::size_t b = 0; b < given.slot.size(); ++b) {
        if (given.count[b] == 0) continue;
        const std::int64_t last = (given.slot[b] + given.count[b] - 1) / table.block_size;
        for (std::int64_t number = given.slot[b] / table.block_size; number <= last; ++number) {
            const std::int64_t block = block_at(table, static_cast<std::int64_t>(b), number);
            if (block < 0 || block >= blocks) {
                refuse(name, "blocks from 0 to " + std::to_string(blocks - 1),
                       std::to_string(block) + " for block " + std::to_string(number) + " of sequence " +
                           std::to_string(b));
            }
        }
    }
}

BlockTable checked_table(const std::string& name, const SegmentArgument& given, std::int64_t batch) {
    const TensorArgument& table = *given.table;
    if (table.element != Element::i32 && table.element != Element::i64) {
        refuse(name, "int32 or int64", text_of(table.element));
    }
    if (table.shape.size() != 2 || table.shape[0] != batch) {
        refuse(name, "[B, blocks] with B = " + std::to_string(batch), text_of(table.shape));
    }
    check_memory(name, table);
    BlockTable result;
    result.is_wide = table.element == Element::i64;
    result.stride = table.stride[0], result.step = table.stride[1];
    result.block_size = std::max<std::int64_t>(given.key.shape[2], 1);
    // An empty table has no memory, and yet it is one.
    static constexpr std::int64_t nothing = 0;
    result.data = is_empty(table) ? &nothing : table.data;
    check_slots(name, given, given.key.shape[2] * table.shape[1]);
    check_blocks(name, given, result, given.key.shape[0]);
    return result;
}

Segment checked_segment(const std::string& name, const SegmentArgument& given, const SegmentArguments& all,
                        const Call& call, std::vector<std::int64_t>& ends) {
    if (given.bits != 0 && given.bits != 4 && given.bits != 8) {
        refuse(name, "codes of 8 or 4 bits, or 0 for plain numbers", std::to_string(given.bits));
    }
    Segment segment;
    segment.storage = storage_of(given.bits);
    segment.key = checked_rows(name + " key", given.key, given.key_scales, given.bits, call.type, call.width);
    segment.value =
        checked_rows(name + " value", given.value, given.value_scales, given.bits, call.type, all.value_width);
    const Shape &key = given.key.shape, &value = given.value.shape;
    const std::int64_t sequences = given.table ? key[0] : call.batch;
    if (key[0] != sequences || key[1] != call.kv_heads) {
        refuse(name + " key", "[B, G, ...] = " + text_of({sequences, call.kv_heads}), text_of(key));
    }
    if (!std::equal(key.begin(), key.begin() + 3, value.begin())) {
        refuse(name + " value", "as many sequences or blocks, heads and slots as the key " + text_of(key),
               text_of(value));
    }
    check_positions(name, given, call, ends);
    if (given.table) segment.table = checked_table(name + " block table", given, call.batch);
    else check_slots(name, given, key[2]);
    segment.first = given.first.data(), segment.count = given.count.data(), segment.slot = given.slot.data();
    return segment;
}

}  // namespace

void stand_in_for_segments(const SegmentArguments& given, Arguments& arguments) {
    alignas(8) static float nothing[2] = {};
    const Shape& query = arguments.query.shape;
    if (query.size() != 4) refuse("query", "[B, H, L, D]", text_of(query));
    const auto stand_in = [&](std::int64_t width) {
        return TensorArgument{nothing, arguments.query.element, {query[0], given.kv_heads, given.keys, width},
                              {0, 0, 0, 1}};
    };
    arguments.key = stand_in(query[3]);
    arguments.value = stand_in(given.value_width);
}

std::vector<Segment> checked_segments(const SegmentArguments& given, const Call& call) {
    if (given.segments.size() > most_segments) {
        refuse("segments", "at most " + std::to_string(most_segments), std::to_string(given.segments.size()));
    }
    std::vector<std::int64_t> ends(static_cast<std::size_t>(call.batch), 0);
    std::vector<Segment> segments;
    for (std::size_t at = 0; at < given.segments.size(); ++at) {
        const std::string name = "segment " + std::to_string(at);
        segments.push_back(checked_segment(name, given.segments[at], given, call, ends));
    }
    return segments;
}

}  // namespace headwise
