// The module; attention stands in bindings_attention.cpp, caches in bindings_caches.cpp. No other file knows Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "cpu_features.hpp"
#include "read_bandwidth.hpp"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_native, module) {
    module.doc() = "The compiled part of headwise; headwise.native is its door.";

    module.def("cpu_features", [] {
        const headwise::CpuFeatures features = headwise::cpu_features();
        return nb::make_tuple(features.level, features.extensions);
    });
    module.def("cache_sizes", [] {
        const headwise::CacheSizes sizes = headwise::cache_sizes();
        return nb::make_tuple(sizes.l1_data, sizes.l2, sizes.l3);
    });
    module.def("default_buffer_bytes", &headwise::default_buffer_bytes);
    module.def("expected_checksum", &headwise::expected_checksum, "bytes_read"_a, "repeats"_a);
    module.def(
        "measure_read_bandwidth",
        [](unsigned threads, std::uint64_t buffer_bytes, unsigned repeats) {
            headwise::ReadBandwidth result;
            {
                nb::gil_scoped_release others_may_run;
                result = headwise::measure_read_bandwidth(threads, buffer_bytes, repeats);
            }
            return nb::make_tuple(result.bytes_read, result.threads, result.seconds, result.checksum);
        },
        "threads"_a, "buffer_bytes"_a, "repeats"_a);
    headwise::bind_attention(module);
    headwise::bind_statistics(module);
    headwise::bind_caches(module);
}
