// Statistics of heads for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arguments_statistics.hpp"
#include "bindings.hpp"
#include "kernels.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise {
namespace {

// (form, array, array, ...), where an array may be None.
RelationArgument relation_of(const nb::tuple& parts) {
    if (parts.size() < 2) throw nb::value_error("expected (form, array, ...)");
    const auto form = nb::cast<unsigned>(parts[0]);
    if (form > static_cast<unsigned>(RelationForm::members)) throw nb::value_error("expected a form from 0 to 2");
    RelationArgument relation;
    relation.form = static_cast<RelationForm>(form);
    for (std::size_t at = 1; at < parts.size(); ++at)
        relation.arrays.push_back(tensor_of(nb::cast<std::optional<nb::tuple>>(parts[at])));
    return relation;
}

// mass, entropy, largest, distance, hits, seen.
StatisticsArguments statistics_of(const std::vector<nb::tuple>& relations, const std::vector<nb::tuple>& results) {
    if (results.size() != 6) throw nb::value_error("expected 6 results");
    StatisticsArguments arguments;
    for (const nb::tuple& relation : relations) arguments.relations.push_back(relation_of(relation));
    TensorArgument* const to[] = {&arguments.mass,     &arguments.entropy, &arguments.largest,
                                  &arguments.distance, &arguments.hits,    &arguments.seen};
    for (std::size_t at = 0; at < results.size(); ++at) *to[at] = tensor_of(results[at]);
    return arguments;
}

}  // namespace

void bind_statistics(nb::module_& module) {
    module.def(
        "head_statistics",
        [](const nb::tuple& query, const nb::tuple& key, const nb::tuple& value, const nb::tuple& output,
           const std::optional<nb::tuple>& lse, Numbers offsets, std::optional<Numbers> key_lengths,
           std::optional<Numbers> left, std::optional<Numbers> right, const std::optional<nb::tuple>& mask,
           const std::optional<nb::tuple>& bias, const std::optional<nb::tuple>& sinks,
           const std::optional<nb::tuple>& slopes, double scale, double softcap, int threads, const std::string& isa,
           const std::vector<nb::tuple>& relations, const std::vector<nb::tuple>& results) {
            Arguments arguments{tensor_of(query),      tensor_of(key),         tensor_of(value),
                                tensor_of(output),     tensor_of(lse),         tensor_of(mask),
                                tensor_of(bias),       tensor_of(sinks),       tensor_of(slopes),
                                std::move(offsets),    std::move(key_lengths), std::move(left),
                                std::move(right),      static_cast<float>(scale), static_cast<float>(softcap),
                                threads};
            const StatisticsArguments asked = statistics_of(relations, results);
            const Kernels& kernels = kernels_of(isa);
            Call call = checked_call(arguments);
            nb::gil_scoped_release others_may_run;
            const Statistics statistics = checked_statistics(asked, call);
            call.statistics = &statistics;
            count_keys(call, statistics);
            prefill(call, *kernels.prefill);
        },
        "query"_a, "key"_a, "value"_a, "output"_a, "lse"_a.none(), "offsets"_a, "key_lengths"_a.none(),
        "left"_a.none(), "right"_a.none(), "mask"_a.none(), "bias"_a.none(), "sinks"_a.none(), "slopes"_a.none(),
        "scale"_a, "softcap"_a, "threads"_a, "isa"_a, "relations"_a, "results"_a);
}

}  // namespace headwise
