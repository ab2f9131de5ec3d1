// The parts of the module; only bindings*.cpp know Python.
#pragma once

#include <nanobind/nanobind.h>

namespace headwise {

void bind_attention(nanobind::module_& module);

}  // namespace headwise
