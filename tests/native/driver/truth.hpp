// Attention in double precision, one pair of query and key after the other, and how far float32 may be from it.
#pragma once

#include <string>
#include <vector>

#include "problem.hpp"

namespace headwise::driver {

struct Truth {
    std::vector<double> output, lse;  // [B, H, L, Dv], [B, H, L]
    double output_limit = 0.0, lse_limit = 0.0;  // the former without the rounding to the type
    double largest_value = 0.0;
};

Truth truth_of(const Problem& problem);

// What the kernels wrote against the truth: empty where it is near enough, else what is wrong. Some kernels round the
// weights to bfloat16.
std::string difference(const Problem& problem, const Truth& truth, bool rounds_weights);

}  // namespace headwise::driver
