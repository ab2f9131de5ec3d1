#include "arguments_statistics.hpp"

#include <algorithm>

#include "argument_checks.hpp"

namespace headwise {
namespace {

// Rows of `size` elements, one per sequence or one for all of them.
template <class T>
PerSequence<T> checked_rows(const std::string& name, const TensorArgument& tensor, Element element,
                            const std::string& axes, const Call& call, std::int64_t size) {
    check_element(name, tensor, element);
    check_memory(name, tensor);
    const Shape& shape = tensor.shape;
    if (shape.size() != 2 || shape[1] != size || (shape[0] != call.batch && shape[0] != 1)) {
        refuse(name, axes + " = " + text_of(Shape{call.batch, size}) + ", or one row for all", text_of(shape));
    }
    check_last_axis(name, tensor);
    return {static_cast<const T*>(tensor.data), shape[0] == 1 ? 0 : tensor.stride[0]};
}

GivenRelation checked_relation(const RelationArgument& given, std::int64_t n, const Call& call) {
    const std::string name = "relation " + std::to_string(n) + ", ";
    const auto rows = [&](std::size_t at, const char* array, const char* axes, std::int64_t size) {
        return checked_rows<std::int64_t>(name + array, *given.arrays[at], Element::i64, axes, call, size);
    };
    const std::size_t expected = given.form == RelationForm::equal ? 3 : 1;
    if (given.arrays.size() != expected) {
        refuse(name + "arrays", std::to_string(expected), std::to_string(given.arrays.size()));
    }
    for (std::size_t at = 0; at < std::min<std::size_t>(expected, 2); ++at)
        if (!given.arrays[at]) refuse(name + "arrays", "a tensor", "none");
    GivenRelation relation;
    relation.form = given.form;
    if (given.form == RelationForm::single) relation.index = rows(0, "index", "[B, L]", call.queries);
    if (given.form == RelationForm::equal) {
        relation.query_ids = rows(0, "query_ids", "[B, L]", call.queries);
        relation.key_ids = rows(1, "key_ids", "[B, S]", call.keys);
        if (given.arrays[2]) relation.excluded = rows(2, "excluded", "[B, L]", call.queries);
    }
    if (given.form == RelationForm::members) {
        relation.members = checked_rows<std::uint8_t>(name + "members", *given.arrays[0], Element::truth, "[B, S]",
                                                      call, call.keys);
    }
    return relation;
}

template <class T>
T* checked_result(const std::string& name, const TensorArgument& tensor, Element element, const std::string& axes,
                  const Shape& shape) {
    check_element(name, tensor, element);
    check_shape(name, tensor, axes, shape);
    check_memory(name, tensor);
    check_contiguous(name, tensor);
    return static_cast<T*>(tensor.data);
}

bool heads_see_alike(const Call& call) {
    for (std::int64_t h = 1; h < call.heads; ++h)
        if (call.left[h] != call.left[0] || call.right[h] != call.right[0]) return false;
    return call.mask.data == nullptr || call.mask.stride[1] == 0;
}

void check_counts(const StatisticsArguments& given, std::int64_t relations, const Call& call, Statistics& statistics) {
    const bool shared = given.seen.shape.size() == 3 && given.seen.shape[1] == 1 && heads_see_alike(call);
    const std::int64_t heads = statistics.count_heads = shared ? 1 : call.heads;
    statistics.hits = checked_result<std::int64_t>("hits", given.hits, Element::i64, "[N, B, heads, L]",
                                                   {relations, call.batch, heads, call.queries});
    statistics.seen = checked_result<std::int64_t>("seen", given.seen, Element::i64, "[B, heads, L]",
                                                   {call.batch, heads, call.queries});
}

}  // namespace

Statistics checked_statistics(const StatisticsArguments& given, const Call& call) {
    Statistics statistics;
    const auto relations = static_cast<std::int64_t>(given.relations.size());
    const Shape rows = {call.batch, call.heads, call.queries};
    const auto result = [&](const char* name, const TensorArgument& tensor) {
        return checked_result<float>(name, tensor, Element::f32, "[B, H, L]", rows);
    };
    statistics.mass = checked_result<float>("mass", given.mass, Element::f32, "[N, B, H, L]",
                                            {relations, call.batch, call.heads, call.queries});
    statistics.entropy = result("entropy", given.entropy);
    statistics.largest = result("largest", given.largest);
    statistics.distance = result("distance", given.distance);
    check_counts(given, relations, call, statistics);
    std::vector<GivenRelation> checked;
    for (std::int64_t n = 0; n < relations; ++n)
        checked.push_back(checked_relation(given.relations[static_cast<std::size_t>(n)], n, call));
    statistics.relations = prepare_relations(call, checked);
    return statistics;
}

}  // namespace headwise
