// Checks of single arguments, and the words in which they refuse: what, what was expected, what came.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arguments.hpp"

namespace headwise {

using Shape = std::vector<std::int64_t>;

std::string text_of(const Shape& shape);
const char* text_of(Element element);

// Throws std::invalid_argument.
[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& got);

std::int64_t bytes_of(Element element);
bool is_empty(const TensorArgument& tensor);
bool is_number(Element element);  // float32, bfloat16 or float16

// That shape and strides belong together, and that the memory is there and aligned.
void check_memory(const std::string& name, const TensorArgument& tensor);
void check_element(const std::string& name, const TensorArgument& tensor, Element expected);
void check_shape(const std::string& name, const TensorArgument& tensor, const std::string& axes, const Shape& shape);
void check_contiguous(const std::string& name, const TensorArgument& tensor);
void check_count(const std::string& name, const std::vector<std::int64_t>& values, const char* axis,
                 std::int64_t count);
// That the last axis lies closely packed.
void check_last_axis(const std::string& name, const TensorArgument& tensor);

}  // namespace headwise
