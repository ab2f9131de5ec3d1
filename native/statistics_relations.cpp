// Relations in the order in which kernels read them.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "statistics.hpp"

namespace headwise {
namespace {

constexpr float no_key = -1.0f, no_query = -2.0f;  // equal to no number and not to each other

std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

// Keys sorted by id and place; `unique` gets the ids in order.
void number_keys(const std::int64_t* given, std::int64_t keys, std::vector<std::int64_t>& unique, EqualIds& ids) {
    std::vector<std::pair<std::int64_t, std::int64_t>> sorted;
    for (std::int64_t key = 0; key < keys; ++key)
        if (given[key] >= 0) sorted.emplace_back(given[key], key);
    std::sort(sorted.begin(), sorted.end());
    ids.of_keys.assign(size_of(keys + tile_padding), no_key);
    for (const auto& [id, key] : sorted) {
        if (unique.empty() || unique.back() != id) {
            unique.push_back(id);
            ids.starts.push_back(static_cast<std::int64_t>(ids.places.size()));
        }
        ids.places.push_back(key);
        ids.of_keys[size_of(key)] = static_cast<float>(unique.size() - 1);
    }
    ids.starts.push_back(static_cast<std::int64_t>(ids.places.size()));
    if (static_cast<std::int64_t>(unique.size()) > most_ids) {
        throw std::length_error("relations: expected at most 2^24 different ids of keys, got " +
                                std::to_string(unique.size()));
    }
}

EqualIds equal_ids(const Call& call, const GivenRelation& given, std::int64_t b) {
    EqualIds ids;
    std::vector<std::int64_t> unique;
    number_keys(given.key_ids.row(b), call.keys, unique, ids);
    const std::int64_t* queries = given.query_ids.row(b);
    ids.of_queries.assign(size_of(call.queries), no_query);
    for (std::int64_t i = 0; i < call.queries; ++i) {
        const auto found = std::lower_bound(unique.begin(), unique.end(), queries[i]);
        if (queries[i] >= 0 && found != unique.end() && *found == queries[i])
            ids.of_queries[size_of(i)] = static_cast<float>(found - unique.begin());
    }
    return ids;
}

std::vector<std::int64_t> places_of(const Call& call, const std::uint8_t* members) {
    std::vector<std::int64_t> places;
    for (std::int64_t key = 0; key < call.keys; ++key)
        if (members[key] != 0) places.push_back(key);
    return places;
}

Relation prepared(const Call& call, const GivenRelation& given) {
    Relation relation;
    relation.form = given.form;
    relation.index = given.index;
    relation.excluded = given.excluded;
    if (given.form == RelationForm::equal) {
        const bool differ = given.query_ids.stride != 0 || given.key_ids.stride != 0;
        for (std::int64_t b = 0; b < (differ ? call.batch : 1); ++b)
            relation.ids.push_back(equal_ids(call, given, b));
    }
    if (given.form == RelationForm::members) {
        for (std::int64_t b = 0; b < (given.members.stride != 0 ? call.batch : 1); ++b)
            relation.places.push_back(places_of(call, given.members.row(b)));
    }
    return relation;
}

}  // namespace

std::vector<Relation> prepare_relations(const Call& call, const std::vector<GivenRelation>& given) {
    std::vector<Relation> relations;
    if (call.batch == 0) return std::vector<Relation>(given.size());
    for (const GivenRelation& one : given) relations.push_back(prepared(call, one));
    return relations;
}

}  // namespace headwise
