// Attention for Python: tensors come as (address, element, shape, strides), which costs less than a protocol that asks
// for them one by one, and needs neither torch nor numpy.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arguments.hpp"
#include "bindings.hpp"
#include "kernels.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise {

Numbers numbers_of(nb::handle sequence) {
    const auto tuple = nb::cast<nb::tuple>(sequence);
    Numbers numbers(tuple.size());
    for (std::size_t at = 0; at < numbers.size(); ++at) numbers[at] = nb::cast<std::int64_t>(tuple[at]);
    return numbers;
}

TensorArgument tensor_of(const nb::tuple& parts) {
    if (parts.size() != 4) throw nb::value_error("expected (address, element, shape, strides)");
    const auto element = nb::cast<unsigned>(parts[1]);
    if (element > static_cast<unsigned>(last_element)) {
        throw nb::value_error("expected an element of native/arguments.hpp");
    }
    TensorArgument tensor;
    tensor.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(parts[0]));
    tensor.element = static_cast<Element>(element);
    tensor.shape = numbers_of(parts[2]);
    tensor.stride = numbers_of(parts[3]);
    return tensor;
}

std::optional<TensorArgument> tensor_of(const std::optional<nb::tuple>& parts) {
    if (!parts) return std::nullopt;
    return tensor_of(*parts);
}

namespace {

using Run = void (*)(const Call&, const Kernels&);

// A function of the module that takes the arguments of one call, checks them and lets `run` do the work.
void bind_call(nb::module_& module, const char* name, Run run) {
    module.def(
        name,
        [run](const nb::tuple& query, const nb::tuple& key, const nb::tuple& value, const nb::tuple& output,
              const std::optional<nb::tuple>& lse, Numbers offsets, std::optional<Numbers> key_lengths,
              std::optional<Numbers> left, std::optional<Numbers> right, const std::optional<nb::tuple>& mask,
              const std::optional<nb::tuple>& bias, const std::optional<nb::tuple>& sinks,
              const std::optional<nb::tuple>& slopes, double scale, double softcap, int threads,
              const std::string& isa) {
            Arguments arguments{tensor_of(query),      tensor_of(key),         tensor_of(value),
                                tensor_of(output),     tensor_of(lse),         tensor_of(mask),
                                tensor_of(bias),       tensor_of(sinks),       tensor_of(slopes),
                                std::move(offsets),    std::move(key_lengths), std::move(left),
                                std::move(right),      static_cast<float>(scale), static_cast<float>(softcap),
                                threads};
            const Call call = checked_call(arguments);
            const Kernels& kernels = kernels_of(isa);
            nb::gil_scoped_release others_may_run;
            run(call, kernels);
        },
        "query"_a, "key"_a, "value"_a, "output"_a, "lse"_a.none(), "offsets"_a, "key_lengths"_a.none(),
        "left"_a.none(), "right"_a.none(), "mask"_a.none(), "bias"_a.none(), "sinks"_a.none(), "slopes"_a.none(),
        "scale"_a, "softcap"_a, "threads"_a, "isa"_a);
}

}  // namespace

void bind_attention(nb::module_& module) {
    module.def("kernel_names", &kernel_names);
    bind_call(module, "decode_attention",
              [](const Call& call, const Kernels& kernels) { decode(call, kernels.decode); });
    bind_call(module, "prefill_attention",
              [](const Call& call, const Kernels& kernels) { prefill(call, *kernels.prefill); });
}

}  // namespace headwise
