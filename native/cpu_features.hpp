// What the processor offers and the operating system lets a program use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headwise {

struct CpuFeatures {
    // The widest common level: "x86-64", "x86-64-v2", "x86-64-v3" or "x86-64-v4" as the x86-64 psABI defines them;
    // elsewhere the name of the architecture, such as "aarch64".
    std::string level;
    // Vector extensions that may be used, in a fixed order: "avx2", "fma", "avx512f", "neon", ...
    std::vector<std::string> extensions;
};

// Sizes in bytes; 0 where the machine does not tell.
struct CacheSizes {
    std::uint64_t l1_data = 0;
    std::uint64_t l2 = 0;
    std::uint64_t l3 = 0;

    // The size of the last level that is known, in bytes; 0 where none is.
    std::uint64_t last_level() const { return l3 != 0 ? l3 : (l2 != 0 ? l2 : l1_data); }
};

CpuFeatures cpu_features();
CacheSizes cache_sizes();

}  // namespace headwise
