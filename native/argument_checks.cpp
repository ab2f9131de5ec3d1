#include "argument_checks.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace headwise {

std::string text_of(const Shape& shape) {
    std::string text = "[";
    for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis ? ", " : "") + std::to_string(shape[axis]);
    return text + "]";
}

const char* text_of(Element element) {
    switch (element) {
        case Element::f32: return "float32";
        case Element::bf16: return "bfloat16";
        case Element::f16: return "float16";
        case Element::i64: return "int64";
        case Element::i8: return "int8";
        case Element::u8: return "uint8";
        case Element::i32: return "int32";
        default: return "bool";
    }
}

void refuse(const std::string& name, const std::string& expected, const std::string& got) {
    throw std::invalid_argument(name + ": expected " + expected + ", got " + got);
}

std::int64_t bytes_of(Element element) {
    switch (element) {
        case Element::truth:
        case Element::i8:
        case Element::u8: return 1;
        case Element::f32:
        case Element::i32: return 4;
        case Element::i64: return 8;
        default: return 2;
    }
}

bool is_number(Element element) {
    return element == Element::f32 || element == Element::bf16 || element == Element::f16;
}

bool is_empty(const TensorArgument& tensor) {
    return std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
}

void check_memory(const std::string& name, const TensorArgument& tensor) {
    if (tensor.shape.size() != tensor.stride.size()) {
        refuse(name, "as many strides as axes", text_of(tensor.stride) + " for shape " + text_of(tensor.shape));
    }
    for (const std::int64_t size : tensor.shape) {
        if (size < 0) refuse(name, "sizes of 0 or more", text_of(tensor.shape));
    }
    if (is_empty(tensor)) return;
    if (tensor.data == nullptr) refuse(name, "a pointer to its memory", "none");
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes_of(tensor.element)) != 0) {
        refuse(name, "memory aligned to its elements of " + std::to_string(bytes_of(tensor.element)) + " bytes",
               "another address");
    }
}

void check_element(const std::string& name, const TensorArgument& tensor, Element expected) {
    if (tensor.element != expected) refuse(name, text_of(expected), text_of(tensor.element));
}

void check_shape(const std::string& name, const TensorArgument& tensor, const std::string& axes, const Shape& shape) {
    if (tensor.shape != shape) refuse(name, axes + " = " + text_of(shape), text_of(tensor.shape));
}

void check_last_axis(const std::string& name, const TensorArgument& tensor) {
    if (tensor.shape.back() > 1 && tensor.stride.back() != 1 && !is_empty(tensor)) {
        refuse(name, "a last axis with stride 1", "strides " + text_of(tensor.stride) + "; call .contiguous() on it");
    }
}

void check_contiguous(const std::string& name, const TensorArgument& tensor) {
    if (is_empty(tensor)) return;
    std::int64_t expected = 1;
    for (std::size_t axis = tensor.shape.size(); axis-- > 0;) {
        if (tensor.shape[axis] > 1 && tensor.stride[axis] != expected) {
            refuse(name, "contiguous memory",
                   "strides " + text_of(tensor.stride) + " for shape " + text_of(tensor.shape));
        }
        expected *= tensor.shape[axis];
    }
}

void check_count(const std::string& name, const std::vector<std::int64_t>& values, const char* axis,
                 std::int64_t count) {
    if (static_cast<std::int64_t>(values.size()) != count) {
        refuse(name, std::string(axis) + " = " + std::to_string(count) + " numbers", std::to_string(values.size()));
    }
}

}  // namespace headwise
