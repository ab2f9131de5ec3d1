#include "cpu_features.hpp"

#include <fstream>
#include <initializer_list>
#include <string_view>

#if defined(__x86_64__) || defined(_M_X64)
#define HEADWISE_X86_64 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headwise {
namespace {

#if defined(HEADWISE_X86_64)

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros where the processor has no such leaf, so that every feature in it reads as absent.
Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
    Registers result;
#if defined(_MSC_VER)
    int values[4];
    __cpuid(values, static_cast<int>(leaf & 0x80000000u));
    if (static_cast<std::uint32_t>(values[0]) < leaf) return result;
    __cpuidex(values, static_cast<int>(leaf), static_cast<int>(subleaf));
    result = {static_cast<std::uint32_t>(values[0]), static_cast<std::uint32_t>(values[1]),
              static_cast<std::uint32_t>(values[2]), static_cast<std::uint32_t>(values[3])};
#else
    __get_cpuid_count(leaf, subleaf, &result.eax, &result.ebx, &result.ecx, &result.edx);
#endif
    return result;
}

bool bit(std::uint64_t value, int position) { return ((value >> position) & 1u) != 0; }

// The register states that the operating system saves when it switches threads (XCR0). A vector extension whose
// registers it does not save must not be used, whatever cpuid says of the processor.
std::uint64_t saved_states() {
    constexpr int osxsave = 27;
    if (!bit(cpuid(1).ecx, osxsave)) return 0;
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    // Written out, since the intrinsic would need this file to be compiled with -mxsave.
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
#endif
}

constexpr std::uint64_t avx_states = 0x6;      // XMM and the upper halves of YMM
constexpr std::uint64_t avx512_states = 0xe6;  // the same, mask registers, upper ZMM, ZMM16 to ZMM31
constexpr std::uint64_t amx_states = 0x60000;  // tile configuration and tile data

bool saved(std::uint64_t states, std::uint64_t wanted) { return (states & wanted) == wanted; }

struct Extension {
    const char* name;
    bool present;
};

std::vector<Extension> x86_extensions() {
    const Registers basic = cpuid(1), extended = cpuid(7), second = cpuid(7, 1);
    const std::uint64_t states = saved_states();
    const bool avx = saved(states, avx_states), avx512 = saved(states, avx512_states), amx = saved(states, amx_states);
    return {
        {"ssse3", bit(basic.ecx, 9)},
        {"sse4_1", bit(basic.ecx, 19)},
        {"sse4_2", bit(basic.ecx, 20)},
        {"popcnt", bit(basic.ecx, 23)},
        {"avx", avx && bit(basic.ecx, 28)},
        {"f16c", avx && bit(basic.ecx, 29)},
        {"fma", avx && bit(basic.ecx, 12)},
        {"avx2", avx && bit(extended.ebx, 5)},
        {"bmi2", bit(extended.ebx, 8)},
        {"avx_vnni", avx && bit(second.eax, 4)},
        {"avx512f", avx512 && bit(extended.ebx, 16)},
        {"avx512dq", avx512 && bit(extended.ebx, 17)},
        {"avx512cd", avx512 && bit(extended.ebx, 28)},
        {"avx512bw", avx512 && bit(extended.ebx, 30)},
        {"avx512vl", avx512 && bit(extended.ebx, 31)},
        {"avx512_vnni", avx512 && bit(extended.ecx, 11)},
        {"avx512_bf16", avx512 && bit(second.eax, 5)},
        {"avx512_fp16", avx512 && bit(extended.edx, 23)},
        {"amx_tile", amx && bit(extended.edx, 24)},
        {"amx_int8", amx && bit(extended.edx, 25)},
        {"amx_bf16", amx && bit(extended.edx, 22)},
    };
}

bool has_all(const std::vector<Extension>& extensions, std::initializer_list<const char*> wanted) {
    for (const std::string_view name : wanted) {
        for (const Extension& extension : extensions) {
            if (name == extension.name && !extension.present) return false;
        }
    }
    return true;
}

// The levels of the x86-64 psABI, told by those of their extensions that attention kernels use.
std::string x86_level(const std::vector<Extension>& extensions) {
    if (!has_all(extensions, {"ssse3", "sse4_1", "sse4_2", "popcnt"})) return "x86-64";
    if (!has_all(extensions, {"avx", "f16c", "fma", "avx2", "bmi2"})) return "x86-64-v2";
    if (!has_all(extensions, {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"})) return "x86-64-v3";
    return "x86-64-v4";
}

// Walks the leaf that describes one cache per subleaf: 4 on Intel, 0x8000001d on AMD, in the same form.
CacheSizes x86_cache_sizes() {
    CacheSizes sizes;
    constexpr std::uint32_t type_data = 1, type_instruction = 2;
    for (const std::uint32_t leaf : {0x4u, 0x8000001du}) {
        for (std::uint32_t index = 0; index < 16; ++index) {
            const Registers cache = cpuid(leaf, index);
            const std::uint32_t type = cache.eax & 0x1f, level = (cache.eax >> 5) & 0x7;
            if (type < type_data) break;
            if (type == type_instruction) continue;
            const std::uint64_t ways = ((cache.ebx >> 22) & 0x3ff) + 1u, partitions = ((cache.ebx >> 12) & 0x3ff) + 1u;
            const std::uint64_t line = (cache.ebx & 0xfff) + 1u, sets = static_cast<std::uint64_t>(cache.ecx) + 1u;
            const std::uint64_t bytes = ways * partitions * line * sets;
            if (level == 1) sizes.l1_data = bytes;
            if (level == 2) sizes.l2 = bytes;
            if (level == 3) sizes.l3 = bytes;
        }
        if (sizes.last_level() != 0) break;
    }
    return sizes;
}

#endif  // HEADWISE_X86_64

#if defined(__APPLE__)

std::uint64_t system_value(const char* name) {
    std::uint64_t value = 0;
    std::size_t length = sizeof(value);
    return sysctlbyname(name, &value, &length, nullptr, 0) == 0 ? value : 0;
}

#endif

// What Linux tells of the caches of the first core; zeros elsewhere, since the files are not there.
[[maybe_unused]] CacheSizes linux_cache_sizes() {
    CacheSizes sizes;
    for (int index = 0; index < 8; ++index) {
        const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
        std::ifstream level_file(folder + "level"), type_file(folder + "type"), size_file(folder + "size");
        int level = 0;
        std::string type, unit;
        std::uint64_t size = 0;
        if (!(level_file >> level) || !(type_file >> type) || !(size_file >> size)) continue;
        size_file >> unit;
        const std::uint64_t bytes = unit == "M" ? size << 20 : (unit == "K" ? size << 10 : size);
        if (type == "Instruction") continue;
        if (level == 1) sizes.l1_data = bytes;
        if (level == 2) sizes.l2 = bytes;
        if (level == 3) sizes.l3 = bytes;
    }
    return sizes;
}

}  // namespace

CpuFeatures cpu_features() {
    CpuFeatures features;
#if defined(HEADWISE_X86_64)
    const std::vector<Extension> extensions = x86_extensions();
    features.level = x86_level(extensions);
    for (const Extension& extension : extensions) {
        if (extension.present) features.extensions.emplace_back(extension.name);
    }
#elif defined(__aarch64__) || defined(_M_ARM64)
    features.level = "aarch64";
    features.extensions.emplace_back("neon");  // part of every 64-bit Arm processor
#if defined(__linux__)
    const unsigned long capabilities = getauxval(AT_HWCAP);
    if ((capabilities & HWCAP_ASIMDHP) != 0) features.extensions.emplace_back("fp16");
    if ((capabilities & HWCAP_ASIMDDP) != 0) features.extensions.emplace_back("dotprod");
    if ((capabilities & HWCAP_SVE) != 0) features.extensions.emplace_back("sve");
#endif
#elif defined(__riscv)
    features.level = "riscv";
#elif defined(__powerpc64__)
    features.level = "ppc64";
#elif defined(__s390x__)
    features.level = "s390x";
#else
    features.level = "unknown";
#endif
    return features;
}

CacheSizes cache_sizes() {
#if defined(__APPLE__)
    return {system_value("hw.l1dcachesize"), system_value("hw.l2cachesize"), system_value("hw.l3cachesize")};
#elif defined(HEADWISE_X86_64)
    const CacheSizes told = x86_cache_sizes();
    return told.last_level() != 0 ? told : linux_cache_sizes();
#else
    return linux_cache_sizes();
#endif
}

}  // namespace headwise
