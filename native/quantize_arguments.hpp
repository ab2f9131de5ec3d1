// Arguments of quantizing, and their checks.
#pragma once

#include "arguments.hpp"
#include "quantize.hpp"

namespace headwise {

struct QuantizeArguments {
    TensorArgument vectors, codes, scales;  // [B, G, T, D], [B, G, T, bytes of the codes], [B, G, T, 1]
    int bits = 8, threads = 1;
};

// std::invalid_argument says which argument does not fit, what was expected and what came.
QuantizeCall checked_call(const QuantizeArguments& given);

}  // namespace headwise
