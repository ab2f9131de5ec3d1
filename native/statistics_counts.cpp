// How many keys each query sees, and how many of them belong to each relation: what attending evenly would give.
#include <algorithm>

#include "statistics.hpp"

namespace headwise {
namespace {

// What one query of one head sees.
struct SeenKeys {
    KeyRange range;
    const std::uint8_t* mask;  // nullptr: all of the range
    std::int64_t stride;

    bool has(std::int64_t key) const { return key >= range.begin && key < range.end && shows(key); }
    bool shows(std::int64_t key) const { return mask == nullptr || mask[key * stride] != 0; }
};

SeenKeys seen_keys(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i) {
    KeyRange range = visible_keys(call, b, h, i);
    range.end = std::max(range.end, range.begin);
    const std::uint8_t* mask = call.mask.data == nullptr ? nullptr : row_of<std::uint8_t>(call.mask, b, h, i);
    return {range, mask, call.mask.stride[3]};
}

std::int64_t count_all(const SeenKeys& seen) {
    if (seen.mask == nullptr) return seen.range.end - seen.range.begin;
    std::int64_t count = 0;
    for (std::int64_t key = seen.range.begin; key < seen.range.end; ++key) count += seen.shows(key);
    return count;
}

// Of keys in order, first to last - 1.
std::int64_t count_places(const SeenKeys& seen, const std::int64_t* first, const std::int64_t* last) {
    first = std::lower_bound(first, last, seen.range.begin);
    last = std::lower_bound(first, last, seen.range.end);
    if (seen.mask == nullptr) return last - first;
    return std::count_if(first, last, [&](std::int64_t key) { return seen.shows(key); });
}

std::int64_t count_equal(const Relation& relation, const SeenKeys& seen, std::int64_t b, std::int64_t i) {
    const EqualIds& ids = relation.ids_of(b);
    const float number = ids.of_queries[static_cast<std::size_t>(i)];
    if (number < 0.0f) return 0;
    const std::int64_t* starts = ids.starts.data() + static_cast<std::int64_t>(number);
    const std::int64_t count = count_places(seen, ids.places.data() + starts[0], ids.places.data() + starts[1]);
    if (relation.excluded.data == nullptr) return count;
    const std::int64_t key = relation.excluded.row(b)[i];
    return count - (seen.has(key) && ids.of_keys[static_cast<std::size_t>(key)] == number);
}

std::int64_t count_hits(const Relation& relation, const SeenKeys& seen, std::int64_t b, std::int64_t i) {
    switch (relation.form) {
        case RelationForm::single: return seen.has(relation.index.row(b)[i]);
        case RelationForm::equal: return count_equal(relation, seen, b, i);
        default: break;
    }
    const std::vector<std::int64_t>& places = relation.places_of(b);
    return count_places(seen, places.data(), places.data() + places.size());
}

}  // namespace

void count_keys(const Call& call, const Statistics& statistics) {
    const std::int64_t rows = call.batch * statistics.count_heads * call.queries;
    const auto relations = static_cast<std::int64_t>(statistics.relations.size());
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(call.threads) if (call.threads > 1)
#endif
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t i = row % call.queries, h = row / call.queries % statistics.count_heads;
        const std::int64_t b = row / call.queries / statistics.count_heads;
        const SeenKeys seen = seen_keys(call, b, h, i);
        statistics.seen[row] = count_all(seen);
        for (std::int64_t n = 0; n < relations; ++n)
            statistics.hits[n * rows + row] = count_hits(statistics.relations[static_cast<std::size_t>(n)], seen, b, i);
    }
}

}  // namespace headwise
