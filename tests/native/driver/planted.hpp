// Whether whatever is watching the memory notices that kernels run past the end of it.
#pragma once

#include <string>
#include <vector>

#include "problem.hpp"

namespace headwise::driver {

enum class Way { decode, prefill, decode_codes };

// What can compute the problem.
std::vector<Way> ways_of(const Problem& problem);
const char* name_of(Way way);
void attend(const Problem& problem, Way way, const std::string& isa);

// Runs every kernel on keys and values that are three elements shorter than it is told, each in a process of its own,
// which has to die of it. How many lived.
int run_planted(const std::vector<std::string>& isas, Place place);

}  // namespace headwise::driver
