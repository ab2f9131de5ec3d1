#include "quantize_arguments.hpp"

#include "argument_checks.hpp"

namespace headwise {
namespace {

void check_rows(const std::string& name, const TensorArgument& tensor, Element element, const Shape& shape) {
    check_element(name, tensor, element);
    check_shape(name, tensor, "[B, G, T, width]", shape);
    check_memory(name, tensor);
    check_last_axis(name, tensor);
}

// What is written may share no memory with itself.
void check_apart(const std::string& name, const TensorArgument& tensor) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
        if (tensor.shape[axis] > 1 && tensor.stride[axis] == 0) {
            refuse(name, "elements that share no memory", "strides " + text_of(tensor.stride));
        }
    }
}

std::array<std::int64_t, 3> strides_of(const TensorArgument& tensor, std::int64_t unit) {
    return {tensor.stride[0] * unit, tensor.stride[1] * unit, tensor.stride[2] * unit};
}

}  // namespace

QuantizeCall checked_call(const QuantizeArguments& given) {
    if (given.bits != 4 && given.bits != 8) refuse("bits", "8 or 4", std::to_string(given.bits));
    const TensorArgument& vectors = given.vectors;
    if (!is_number(vectors.element)) refuse("vectors", "float32, bfloat16 or float16", text_of(vectors.element));
    if (vectors.shape.size() != 4) refuse("vectors", "[B, G, T, D]", text_of(vectors.shape));
    const std::int64_t batch = vectors.shape[0], heads = vectors.shape[1], tokens = vectors.shape[2];
    const std::int64_t width = vectors.shape[3], bytes = given.bits == 8 ? width : (width + 1) / 2;
    check_rows("vectors", vectors, vectors.element, vectors.shape);
    check_rows("codes", given.codes, given.bits == 8 ? Element::i8 : Element::u8, {batch, heads, tokens, bytes});
    check_rows("scales", given.scales, Element::f32, {batch, heads, tokens, 1});
    check_apart("codes", given.codes);
    check_apart("scales", given.scales);
    if (given.threads < 1) refuse("threads", "at least 1", std::to_string(given.threads));
    QuantizeCall call;
    call.batch = batch, call.heads = heads, call.tokens = tokens, call.width = width;
    call.type = static_cast<Type>(vectors.element);
    call.vectors = static_cast<const std::byte*>(vectors.data);
    call.codes = static_cast<std::byte*>(given.codes.data);
    call.scales = static_cast<float*>(given.scales.data);
    call.vector_stride = strides_of(vectors, bytes_of(vectors.element));
    call.code_stride = strides_of(given.codes, 1);
    call.scale_stride = strides_of(given.scales, 1);
    call.bits = given.bits, call.threads = given.threads;
    return call;
}

}  // namespace headwise
