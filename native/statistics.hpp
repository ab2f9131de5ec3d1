// What is read off the softmax weights of heads beside their outputs, without a map of them: entropy, largest weight,
// mean distance, and the weight that falls on the keys of relations. headwise.attention.head_statistics says what each
// of them means.
//
// A relation gives every query some keys, the same for all heads. It has one of three forms, for which the kernels
// need no map either. N is the number of relations; the other axes are those of attention.hpp.
#pragma once

#include <cstddef>
#include <vector>

#include "attention.hpp"

namespace headwise {

enum class RelationForm : std::uint8_t { single, equal, members };

// A row per sequence, or one for all of them (stride 0).
template <class T>
struct PerSequence {
    const T* data = nullptr;
    std::int64_t stride = 0;

    const T* row(std::int64_t b) const { return data + b * stride; }
};

// Relations as they are given.
struct GivenRelation {
    RelationForm form = RelationForm::single;
    PerSequence<std::int64_t> index;               // single [L]: the key of each query; none where there is no such key
    PerSequence<std::int64_t> query_ids, key_ids;  // equal [L], [S]: keys with the id of the query; negative: with none
    PerSequence<std::int64_t> excluded;            // equal [L] or nullptr: a key that does not count for the query
    PerSequence<std::uint8_t> members;             // members [S], not 0: a key of every query
};

// Ids of one sequence, numbered from 0 in float32, in which kernels compare them; `places` are the keys of number n in
// order, from starts[n] to starts[n + 1].
struct EqualIds {
    std::vector<float> of_queries, of_keys;  // [L], [S + tile_padding]; numbers below 0 are equal to none
    std::vector<std::int64_t> starts, places;
};

// Kernels read ids of keys in whole strips.
inline constexpr std::int64_t tile_padding = 64;
// float32 tells so many numbers apart.
inline constexpr std::int64_t most_ids = std::int64_t{1} << 24;

// A relation as kernels read it. `ids` and `places` hold an entry per sequence, or one for all.
struct Relation {
    RelationForm form = RelationForm::single;
    PerSequence<std::int64_t> index, excluded;      // of single, of equal
    std::vector<EqualIds> ids;                      // of equal
    std::vector<std::vector<std::int64_t>> places;  // of members: the keys in order

    const EqualIds& ids_of(std::int64_t b) const { return ids[ids.size() == 1 ? 0 : static_cast<std::size_t>(b)]; }
    const std::vector<std::int64_t>& places_of(std::int64_t b) const {
        return places[places.size() == 1 ? 0 : static_cast<std::size_t>(b)];
    }
};

// std::length_error where a relation tells more than most_ids ids apart.
std::vector<Relation> prepare_relations(const Call& call, const std::vector<GivenRelation>& given);

// What is asked for. All of it is contiguous and written whole.
struct Statistics {
    std::vector<Relation> relations;
    float* mass = nullptr;                                              // [N, B, H, L]
    float *entropy = nullptr, *largest = nullptr, *distance = nullptr;  // [B, H, L]
    std::int64_t count_heads = 0;                                       // 1 where all heads see the same keys, else H
    std::int64_t* hits = nullptr;  // [N, B, count_heads, L]: visible keys of the relation
    std::int64_t* seen = nullptr;  // [B, count_heads, L]: visible keys
};

// Fills in hits and seen, which no score takes part in.
void count_keys(const Call& call, const Statistics& statistics);

}  // namespace headwise
