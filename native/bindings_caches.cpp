// Attention over segments of keys and values, and quantizing, for Python; see bindings_attention.cpp.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "kernels.hpp"
#include "quantize_arguments.hpp"
#include "segment_arguments.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise {
namespace {

std::optional<TensorArgument> optional_tensor(nb::handle given) {
    if (given.is_none()) return std::nullopt;
    return tensor_of(nb::cast<nb::tuple>(given));
}

// (bits, key, value, key scales, value scales, first, count, slot, table), where scales and table may be None.
SegmentArgument segment_of(const nb::tuple& parts) {
    if (parts.size() != 9) throw nb::value_error("expected the nine parts of a segment");
    SegmentArgument segment;
    segment.bits = nb::cast<int>(parts[0]);
    segment.key = tensor_of(nb::cast<nb::tuple>(parts[1]));
    segment.value = tensor_of(nb::cast<nb::tuple>(parts[2]));
    segment.key_scales = optional_tensor(parts[3]);
    segment.value_scales = optional_tensor(parts[4]);
    segment.first = numbers_of(parts[5]);
    segment.count = numbers_of(parts[6]);
    segment.slot = numbers_of(parts[7]);
    segment.table = optional_tensor(parts[8]);
    return segment;
}

void decode_segments(const nb::tuple& query, const nb::tuple& output, std::int64_t kv_heads, std::int64_t keys,
                     std::int64_t value_width, const std::vector<nb::tuple>& segments,
                     const std::optional<nb::tuple>& lse, Numbers offsets, std::optional<Numbers> left,
                     std::optional<Numbers> right, const std::optional<nb::tuple>& mask,
                     const std::optional<nb::tuple>& bias, const std::optional<nb::tuple>& sinks,
                     const std::optional<nb::tuple>& slopes, double scale, double softcap, int threads,
                     const std::string& isa) {
    SegmentArguments given{kv_heads, keys, value_width, {}};
    for (const nb::tuple& segment : segments) given.segments.push_back(segment_of(segment));
    Arguments arguments{tensor_of(query),   {},
                        {},                 tensor_of(output),
                        tensor_of(lse),     tensor_of(mask),
                        tensor_of(bias),    tensor_of(sinks),
                        tensor_of(slopes),  std::move(offsets),
                        std::nullopt,       std::move(left),
                        std::move(right),   static_cast<float>(scale),
                        static_cast<float>(softcap), threads};
    stand_in_for_segments(given, arguments);
    const Call call = checked_call(arguments);
    const std::vector<Segment> checked = checked_segments(given, call);
    const Kernels& kernels = kernels_of(isa);
    nb::gil_scoped_release others_may_run;
    decode(call, checked, kernels.decode);
}

void quantize_vectors(const nb::tuple& vectors, const nb::tuple& codes, const nb::tuple& scales, int bits, int threads,
                      const std::string& isa) {
    const QuantizeCall call =
        checked_call(QuantizeArguments{tensor_of(vectors), tensor_of(codes), tensor_of(scales), bits, threads});
    const Kernels& kernels = kernels_of(isa);
    nb::gil_scoped_release others_may_run;
    quantize(call, kernels.quantize);
}

}  // namespace

void bind_caches(nb::module_& module) {
    module.def("decode_segments", &decode_segments, "query"_a, "output"_a, "kv_heads"_a, "keys"_a, "value_width"_a,
               "segments"_a, "lse"_a.none(), "offsets"_a, "left"_a.none(), "right"_a.none(), "mask"_a.none(),
               "bias"_a.none(), "sinks"_a.none(), "slopes"_a.none(), "scale"_a, "softcap"_a, "threads"_a, "isa"_a);
    module.def("quantize", &quantize_vectors, "vectors"_a, "codes"_a, "scales"_a, "bits"_a, "threads"_a, "isa"_a);
}

}  // namespace headwise
