// What prefill.cpp defines per instruction set; see PrefillKernels.
#pragma once

#include "prefill.hpp"

namespace headwise::HEADWISE_ISA {

extern const PrefillKernels prefill_kernels;

}  // namespace headwise::HEADWISE_ISA
