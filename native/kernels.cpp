#include "kernels.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "cpu_features.hpp"

// One line per instruction set that the build has compiled kernels for.
#define HEADWISE_DECLARE(isa)           \
    namespace headwise::isa {           \
    extern const Kernels kernel_table;  \
    }
HEADWISE_DECLARE(baseline)
#if defined(HEADWISE_BUILT_AVX2)
HEADWISE_DECLARE(avx2)
#endif
#if defined(HEADWISE_BUILT_AVX512)
HEADWISE_DECLARE(avx512)
#endif
#if defined(HEADWISE_BUILT_AVX512_BF16)
HEADWISE_DECLARE(avx512_bf16)
#endif
#if defined(HEADWISE_BUILT_NEON)
HEADWISE_DECLARE(neon)
#endif

namespace headwise {
namespace {

struct Built {
    const Kernels* kernels;
    std::vector<std::string> needs;  // extensions of the processor
};

std::vector<Built> built_kernels() {
    std::vector<Built> built = {{&baseline::kernel_table, {}}};
#if defined(HEADWISE_BUILT_AVX2)
    built.push_back({&avx2::kernel_table, {"avx2", "fma", "f16c"}});
#endif
#if defined(HEADWISE_BUILT_AVX512)
    built.push_back({&avx512::kernel_table, {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"}});
#endif
#if defined(HEADWISE_BUILT_AVX512_BF16)
    built.push_back({&avx512_bf16::kernel_table,
                     {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"}});
#endif
#if defined(HEADWISE_BUILT_NEON)
    built.push_back({&neon::kernel_table, {"neon"}});
#endif
    return built;
}

std::vector<const Kernels*> find_usable() {
    const std::vector<std::string> present = cpu_features().extensions;
    const auto has = [&](const std::string& need) {
        return std::find(present.begin(), present.end(), need) != present.end();
    };
    std::vector<const Kernels*> found;
    for (const Built& built : built_kernels()) {
        if (std::all_of(built.needs.begin(), built.needs.end(), has)) found.push_back(built.kernels);
    }
    return found;
}

const std::vector<const Kernels*>& usable_kernels() {
    static const std::vector<const Kernels*> usable = find_usable();
    return usable;
}

std::string joined(const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
}

}  // namespace

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const Kernels* kernels : usable_kernels()) names.emplace_back(kernels->name);
    return names;
}

const Kernels& kernels_of(const std::string& name) {
    std::string wanted = name;
    const char* const forced = std::getenv("HEADWISE_ISA");
    if (wanted.empty() && forced != nullptr) wanted = forced;
    if (wanted.empty()) return *usable_kernels().back();
    for (const Kernels* kernels : usable_kernels()) {
        if (wanted == kernels->name) return *kernels;
    }
    throw std::invalid_argument(std::string(name.empty() ? "HEADWISE_ISA" : "isa") +
                                ": expected one of the instruction sets that were built and that this processor has (" +
                                joined(kernel_names()) + "), got " + wanted);
}

}  // namespace headwise
