// The parts of the module; only bindings*.cpp know Python.
#pragma once

#include <nanobind/nanobind.h>

#include "arguments.hpp"

namespace headwise {

using Numbers = std::vector<std::int64_t>;

Numbers numbers_of(nanobind::handle sequence);
// (address, element, shape, strides) as headwise.native describes tensors.
TensorArgument tensor_of(const nanobind::tuple& parts);
std::optional<TensorArgument> tensor_of(const std::optional<nanobind::tuple>& parts);

void bind_attention(nanobind::module_& module);
void bind_statistics(nanobind::module_& module);
void bind_caches(nanobind::module_& module);

}  // namespace headwise
