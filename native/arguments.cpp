#include "arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "argument_checks.hpp"

namespace headwise {
namespace {

// Query, key, value or output: four axes of which the last lies closely packed.
void check_vectors(const std::string& name, const TensorArgument& tensor, const std::string& axes, Element element) {
    if (tensor.shape.size() != 4) refuse(name, axes, text_of(tensor.shape));
    check_element(name, tensor, element);
    check_memory(name, tensor);
    check_last_axis(name, tensor);
}

template <class Pointer>
Strided<Pointer> strided(const TensorArgument& tensor) {
    Strided<Pointer> result;
    result.data = static_cast<Pointer>(tensor.data);
    // An axis of size 1 is never stepped along, whatever its stride.
    for (std::size_t axis = 0; axis < 4; ++axis) {
        result.stride[axis] = tensor.shape[axis] == 1 ? 0 : tensor.stride[axis];
    }
    result.stride[3] = 1;
    return result;
}

template <class Pointer>
Strided<Pointer> broadcast(const std::string& name, const TensorArgument& tensor, const Shape& full) {
    check_memory(name, tensor);
    const std::size_t axes = tensor.shape.size();
    bool fits = axes <= 4;
    Strided<Pointer> result;
    for (std::size_t axis = 0; axis < axes && fits; ++axis) {
        const std::size_t to = 4 - axes + axis;
        fits = tensor.shape[axis] == full[to] || tensor.shape[axis] == 1;
        result.stride[to] = tensor.shape[axis] == 1 ? 0 : tensor.stride[axis];
    }
    if (!fits) refuse(name, "a shape that broadcasts to [B, H, L, S] = " + text_of(full), text_of(tensor.shape));
    result.data = static_cast<Pointer>(tensor.data);
    return result;
}

void check_sizes(const Arguments& given, Call& call) {
    const Element element = given.query.element;
    if (!is_number(element)) refuse("query", "float32, bfloat16 or float16", text_of(element));
    check_vectors("query", given.query, "[B, H, L, D]", element);
    check_vectors("key", given.key, "[B, G, S, D]", element);
    check_vectors("value", given.value, "[B, G, S, Dv]", element);
    check_vectors("output", given.output, "[B, H, L, Dv]", element);
    call.type = static_cast<Type>(element);
    const Shape &query = given.query.shape, &key = given.key.shape, &value = given.value.shape;
    call.batch = query[0], call.heads = query[1], call.queries = query[2], call.width = query[3];
    call.kv_heads = key[1], call.keys = key[2], call.value_width = value[3];
    check_shape("key", given.key, "[B, G, S, D]", {call.batch, call.kv_heads, call.keys, call.width});
    check_shape("value", given.value, "[B, G, S, Dv]", {call.batch, call.kv_heads, call.keys, call.value_width});
    check_shape("output", given.output, "[B, H, L, Dv]", {call.batch, call.heads, call.queries, call.value_width});
    if (call.kv_heads < 1 || call.heads % call.kv_heads != 0) {
        refuse("key", "a number of KV heads that divides the " + std::to_string(call.heads) + " query heads",
               std::to_string(call.kv_heads));
    }
    for (std::size_t axis = 0; axis < 4; ++axis) {
        if (given.output.shape[axis] > 1 && given.output.stride[axis] == 0) {
            refuse("output", "elements that share no memory", "strides " + text_of(given.output.stride));
        }
    }
}

void check_positions(Arguments& given, Call& call) {
    check_count("offsets", given.offsets, "B", call.batch);
    for (const std::int64_t offset : given.offsets) {
        if (offset < -position_limit || offset > position_limit) {
            refuse("offsets", "positions of at most 2^60", std::to_string(offset));
        }
    }
    call.offsets = given.offsets.data();
    if (given.key_lengths) {
        check_count("key_lengths", *given.key_lengths, "B", call.batch);
        for (const std::int64_t length : *given.key_lengths) {
            if (length < 0 || length > call.keys) {
                refuse("key_lengths", "lengths from 0 to S = " + std::to_string(call.keys), std::to_string(length));
            }
        }
        call.key_lengths = given.key_lengths->data();
    }
}

const std::int64_t* checked_window(const char* name, std::optional<std::vector<std::int64_t>>& side,
                                   std::int64_t heads) {
    if (!side) side.emplace(static_cast<std::size_t>(heads), -1);
    check_count(name, *side, "H", heads);
    for (std::int64_t& keys : *side) {
        if (keys < -1) refuse(name, "numbers of keys, or -1 for all", std::to_string(keys));
        keys = std::min(keys, position_limit);
    }
    return side->data();
}

void check_scores(const Arguments& given, Call& call) {
    const Shape full = {call.batch, call.heads, call.queries, call.keys};
    if (given.mask) {
        check_element("mask", *given.mask, Element::truth);
        call.mask = broadcast<const std::uint8_t*>("mask", *given.mask, full);
    }
    if (given.bias) {
        if (!is_number(given.bias->element)) {
            refuse("bias", "float32, bfloat16 or float16", text_of(given.bias->element));
        }
        call.bias = broadcast<const void*>("bias", *given.bias, full);
        call.bias_type = static_cast<Type>(given.bias->element);
    }
    if (!std::isfinite(given.scale)) refuse("scale", "a finite number", std::to_string(given.scale));
    if (!std::isfinite(given.softcap) || given.softcap < 0.0f) {
        refuse("softcap", "a positive number, or 0 for none", std::to_string(given.softcap));
    }
    call.scale = given.scale, call.softcap = given.softcap;
}

const float* checked_floats(const char* name, const TensorArgument& tensor, const char* axes, const Shape& shape) {
    check_element(name, tensor, Element::f32);
    check_shape(name, tensor, axes, shape);
    check_memory(name, tensor);
    check_contiguous(name, tensor);
    return static_cast<const float*>(tensor.data);
}

void check_heads(const Arguments& given, Call& call) {
    if (given.sinks) call.sinks = checked_floats("sinks", *given.sinks, "[H]", {call.heads});
    if (given.slopes) {
        const bool per_sequence = given.slopes->shape.size() == 2;
        const Shape shape = per_sequence ? Shape{call.batch, call.heads} : Shape{call.heads};
        call.slopes = checked_floats("slopes", *given.slopes, per_sequence ? "[B, H]" : "[H]", shape);
        call.slopes_batch_stride = per_sequence ? call.heads : 0;
    }
    if (given.lse) {
        const float* lse = checked_floats("lse", *given.lse, "[B, H, L]", {call.batch, call.heads, call.queries});
        call.lse = const_cast<float*>(lse);
    }
}

}  // namespace

Call checked_call(Arguments& given) {
    Call call;
    check_sizes(given, call);
    check_positions(given, call);
    call.left = checked_window("left", given.left, call.heads);
    call.right = checked_window("right", given.right, call.heads);
    check_scores(given, call);
    check_heads(given, call);
    if (given.threads < 1) refuse("threads", "at least 1", std::to_string(given.threads));
    call.threads = given.threads;
    call.query = strided<const void*>(given.query);
    call.key = strided<const void*>(given.key);
    call.value = strided<const void*>(given.value);
    call.output = strided<void*>(given.output);
    return call;
}

}  // namespace headwise
