// Which instruction sets were built, which of them this processor has, and the kernels of each.
#pragma once

#include <string>
#include <vector>

#include "decode.hpp"
#include "prefill.hpp"
#include "quantize.hpp"

namespace headwise {

struct Kernels {
    const char* name;  // baseline, avx2, avx512, avx512_bf16 or neon
    DecodeKernels decode;
    QuantizeKernel quantize;
    const PrefillKernels* prefill;
};

// Those that can run here, from the plainest to the best.
std::vector<std::string> kernel_names();

// The kernels of that name. An empty name stands for what the environment variable HEADWISE_ISA says, and without it
// for the best. std::invalid_argument, with the names that can be had, where there are none of that name.
const Kernels& kernels_of(const std::string& name);

}  // namespace headwise
