#include "tensor.hpp"

#include <algorithm>

#include "numbers.hpp"

namespace headwise::driver {

std::byte* Tensor::at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t index[4] = {b, h, i, j};
    const std::size_t axes = argument.shape.size();
    std::int64_t elements = 0;
    for (std::size_t axis = 0; axis < axes; ++axis) {
        if (argument.shape[axis] != 1) elements += index[4 - axes + axis] * argument.stride[axis];
    }
    return static_cast<std::byte*>(argument.data) + elements * static_cast<std::int64_t>(bytes_of(argument.element));
}

double Tensor::number(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return read_number(argument.element, at(b, h, i, j));
}

Shape random_strides(const Shape& shape, Dice& dice, bool dense_rows) {
    const std::size_t axes = shape.size();
    Shape order, strides(axes, 1);
    for (std::size_t axis = axes; axis-- > 0;) order.push_back(static_cast<std::int64_t>(axis));
    if (axes == 4 && dice.one_in(2)) std::swap(order[1], order[2]);  // [B, L, H, D] in memory
    std::int64_t step = dense_rows ? 1 : dice.of({1, 1, 2});
    for (const std::int64_t axis : order) {
        strides[static_cast<std::size_t>(axis)] = step;
        step *= std::max<std::int64_t>(shape[static_cast<std::size_t>(axis)], 1);
        if (axis + 1 == static_cast<std::int64_t>(axes)) step += dice.of({0, 0, 3});
    }
    if (axes > 1 && dice.one_in(4)) strides[axes - 2] = -strides[axes - 2];
    return strides;
}

Shape broadcast_shape(Shape full, Dice& dice) {
    for (std::int64_t& size : full) size = dice.one_in(2) ? 1 : size;
    const auto first = full.begin() + dice.up_to(full[0] == 1 ? 1 : 0);
    return {first, full.end()};
}

Tensor make_tensor(Element element, Shape shape, Shape strides, Place place, std::int64_t missing) {
    std::int64_t lowest = 0, highest = 0;
    bool empty = false;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        empty = empty || shape[axis] == 0;
        const std::int64_t reach = (shape[axis] - 1) * strides[axis];
        (reach < 0 ? lowest : highest) += reach;
    }
    const std::int64_t count = empty ? 0 : std::max<std::int64_t>(highest - lowest + 1 - missing, 0);
    Tensor tensor;
    tensor.memory = Memory(static_cast<std::size_t>(count) * bytes_of(element), place);
    const std::int64_t before = place == Place::after_guard ? lowest + missing : lowest;
    std::byte* const origin = tensor.memory.begin() - before * static_cast<std::int64_t>(bytes_of(element));
    tensor.argument = {empty ? nullptr : origin, element, std::move(shape), std::move(strides)};
    return tensor;
}

Tensor packed(Element element, const Shape& shape, Place place) {
    Shape strides(shape.size(), 1);
    for (std::size_t axis = shape.size() - 1; axis-- > 0;) {
        strides[axis] = strides[axis + 1] * std::max<std::int64_t>(shape[axis + 1], 1);
    }
    return make_tensor(element, shape, std::move(strides), place);
}

Tensor random_floats(const Shape& shape, double size, Dice& dice, Place place) {
    Tensor tensor = packed(Element::f32, shape, place);
    each_element(tensor, [&](std::byte* at) { write_number(Element::f32, size * dice.number(), at); });
    return tensor;
}

}  // namespace headwise::driver
