// Tensors that lie in memory of their own, not a byte larger than they need.
#pragma once

#include <vector>

#include "arguments.hpp"
#include "dice.hpp"
#include "memory.hpp"

namespace headwise::driver {

using Shape = std::vector<std::int64_t>;

// A tensor of up to four axes in exactly the memory that its strides reach.
struct Tensor {
    TensorArgument argument;  // as the kernels get it
    Memory memory;

    // Where the element of [b, h, i, j] lies; axes of size 1 repeat, axes in front may be missing.
    std::byte* at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
    double number(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
};

// Strides of a shape: the axes in one order or another, gaps between rows, and the rows backwards now and then.
Shape random_strides(const Shape& shape, Dice& dice, bool dense_rows);

// A shape that broadcasts to the full one, leading axes of size 1 left out now and then.
Shape broadcast_shape(Shape full, Dice& dice);

// `missing` elements are said to be there and are not, on the side that is watched: a planted error.
Tensor make_tensor(Element element, Shape shape, Shape strides, Place place, std::int64_t missing = 0);

Tensor packed(Element element, const Shape& shape, Place place);  // contiguous

Tensor random_floats(const Shape& shape, double size, Dice& dice, Place place);

// Every element of a tensor with four axes or fewer, axes of size 1 once.
template <class Function>
void each_element(const Tensor& tensor, const Function& function) {
    Shape full(4 - tensor.argument.shape.size(), 1);
    full.insert(full.end(), tensor.argument.shape.begin(), tensor.argument.shape.end());
    for (std::int64_t b = 0; b < full[0]; ++b)
        for (std::int64_t h = 0; h < full[1]; ++h)
            for (std::int64_t i = 0; i < full[2]; ++i)
                for (std::int64_t j = 0; j < full[3]; ++j) function(tensor.at(b, h, i, j));
}

}  // namespace headwise::driver
