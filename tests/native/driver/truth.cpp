#include "truth.hpp"

#include <algorithm>
#include <cmath>

#include "numbers.hpp"

namespace headwise::driver {
namespace {

// The largest sizes that occur, from which the limits follow.
struct Largest {
    double product = 0.0, addend = 0.0, value = 0.0, lse = 0.0;
};

struct Row {
    std::int64_t b, h, i, g;
};

double score_of(const Problem& problem, Row row, std::int64_t j, Largest& largest) {
    double product = 0.0, size = 0.0, addend = 0.0;
    for (std::int64_t d = 0; d < problem.sizes.width; ++d) {
        const double one = problem.query.number(row.b, row.h, row.i, d) * problem.key.number(row.b, row.g, j, d);
        product += one, size += std::abs(one);
    }
    double score = product * problem.scale;
    const double cap = problem.softcap;
    if (cap != 0.0) score = cap * std::tanh(score / cap);
    if (problem.bias) addend = problem.bias->number(row.b, row.h, row.i, j);
    if (std::isfinite(addend)) largest.addend = std::max(largest.addend, std::abs(addend));
    if (problem.slopes) {
        const auto behind = static_cast<double>(problem.offsets[static_cast<std::size_t>(row.b)] + row.i - j);
        const double slope = problem.slopes->number(0, 0, row.b, row.h) * std::abs(behind);
        largest.addend = std::max(largest.addend, std::abs(slope) + std::abs(addend == -INFINITY ? 0.0 : addend));
        addend -= slope;
    }
    largest.product = std::max(largest.product, size * std::abs(static_cast<double>(problem.scale)));
    return score + addend;
}

// Output to `output`, the LSE as result.
double attend(const Problem& problem, Row row, double* output, Largest& largest) {
    std::vector<std::pair<std::int64_t, double>> scores;
    double highest = -INFINITY;
    for (std::int64_t j = 0; j < problem.sizes.keys; ++j) {
        if (!problem.sees(row.b, row.h, row.i, j)) continue;
        scores.emplace_back(j, score_of(problem, row, j, largest));
        highest = std::max(highest, scores.back().second);
    }
    for (const auto& [j, score] : scores) {
        if (!std::isnan(score)) continue;
        std::fill(output, output + problem.sizes.value_width, NAN);
        return NAN;
    }
    if (highest == -INFINITY) return -INFINITY;
    double total = 0.0;
    if (problem.sinks) {
        const double sink = problem.sinks->number(0, 0, 0, row.h);
        highest = std::max(highest, sink);
        total = std::exp(sink - highest);
    }
    for (const auto& [j, score] : scores) {
        const double weight = std::exp(score - highest);
        total += weight;
        for (std::int64_t d = 0; d < problem.sizes.value_width; ++d) {
            const double value = problem.value.number(row.b, row.g, j, d);
            output[d] += weight * value;
            largest.value = std::max(largest.value, std::abs(value));
        }
    }
    for (std::int64_t d = 0; d < problem.sizes.value_width; ++d) output[d] /= total;
    return highest + std::log(total);
}

// A score is a sum of D products and a few steps more, each with one rounding of float32. An error of e in the scores
// changes a weight by a factor of e^(2 e) at most; sums over S keys add one rounding per key.
void set_limits(const Problem& problem, const Largest& largest, Truth& truth) {
    const double unit = rounding_of(Element::f32);
    const double score = (static_cast<double>(problem.sizes.width) + 16) * unit * (largest.product + largest.addend);
    const double sums = 2 * score + (static_cast<double>(problem.sizes.keys) + 32) * unit;
    truth.largest_value = largest.value;
    truth.output_limit = 2 * sums * largest.value;
    truth.lse_limit = sums + 2 * unit * largest.lse;
}

// The output is rounded to its type, whose smallest steps are those of float16.
double rounded_limit(const Problem& problem, double limit, double expected) {
    const double rounding = rounding_of(problem.element) * (std::abs(expected) + limit);
    return limit + (problem.element == Element::f16 ? std::max(rounding, 0x1p-25) : rounding);
}

bool near(double found, double expected, double limit) {
    if (std::isnan(expected)) return std::isnan(found);
    return std::isinf(expected) ? found == expected : std::abs(found - expected) <= limit;  // not where found is NaN
}

std::string described(const char* what, Row row, double found, double expected, double limit) {
    return std::string(what) + " of sequence " + std::to_string(row.b) + ", head " + std::to_string(row.h) +
           ", query " + std::to_string(row.i) + ": expected " + std::to_string(expected) + " to within " +
           std::to_string(limit) + ", got " + std::to_string(found);
}

template <class Function>
void each_row(const Problem& problem, const Function& function) {
    const Sizes& sizes = problem.sizes;
    for (std::int64_t b = 0; b < sizes.batch; ++b)
        for (std::int64_t h = 0; h < sizes.heads; ++h)
            for (std::int64_t i = 0; i < sizes.queries; ++i)
                function(Row{b, h, i, h / (sizes.heads / sizes.kv_heads)},
                         static_cast<std::size_t>((b * sizes.heads + h) * sizes.queries + i));
}

}  // namespace

Truth truth_of(const Problem& problem) {
    Truth truth;
    Largest largest;
    const auto rows = static_cast<std::size_t>(problem.sizes.batch * problem.sizes.heads * problem.sizes.queries);
    const auto width = static_cast<std::size_t>(problem.sizes.value_width);
    truth.output.assign(rows * width, 0.0);
    truth.lse.assign(rows, -INFINITY);
    each_row(problem, [&](Row row, std::size_t at) {
        truth.lse[at] = attend(problem, row, truth.output.data() + at * width, largest);
        if (std::isfinite(truth.lse[at])) largest.lse = std::max(largest.lse, std::abs(truth.lse[at]));
    });
    set_limits(problem, largest, truth);
    return truth;
}

std::string difference(const Problem& problem, const Truth& truth, bool rounds_weights) {
    std::string wrong;
    const double weights = rounds_weights ? 2 * rounding_of(Element::bf16) * truth.largest_value : 0.0;
    const auto width = static_cast<std::size_t>(problem.sizes.value_width);
    each_row(problem, [&](Row row, std::size_t at) {
        if (!wrong.empty()) return;
        const double lse = problem.lse.number(0, row.b, row.h, row.i);
        if (!near(lse, truth.lse[at], truth.lse_limit)) {
            wrong = described("LSE", row, lse, truth.lse[at], truth.lse_limit);
        }
        for (std::size_t d = 0; d < width && wrong.empty(); ++d) {
            const double found = problem.output.number(row.b, row.h, row.i, static_cast<std::int64_t>(d));
            const double expected = truth.output[at * width + d];
            const double limit = rounded_limit(problem, truth.output_limit + weights, expected);
            if (!near(found, expected, limit)) wrong = described("output", row, found, expected, limit);
        }
    });
    return wrong;
}

}  // namespace headwise::driver
