// What quantize.cpp defines per instruction set.
#pragma once

#include "quantize.hpp"

namespace headwise::HEADWISE_ISA {

void quantize_head(const QuantizeCall& call, std::int64_t b, std::int64_t g);

}  // namespace headwise::HEADWISE_ISA
