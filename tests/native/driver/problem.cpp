#include "problem.hpp"

#include <algorithm>

#include "numbers.hpp"

namespace headwise::driver {
namespace {

Sizes random_sizes(Dice& dice) {
    Sizes sizes{};
    sizes.batch = dice.of({1, 1, 2});
    sizes.kv_heads = dice.of({1, 2, 3});
    sizes.heads = sizes.kv_heads * dice.of({1, 2, 3, 4, 5, 7, 8, 9, 17});
    sizes.queries = dice.of({1, 1, 2, 3, 5, 19, 37});
    sizes.keys = dice.of({0, 1, 2, 7, 15, 31, 64, 101, 211, 1103});
    if (sizes.keys > 1000) sizes.queries = 1;
    const std::vector<std::int64_t> widths = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 64, 67, 97};
    sizes.width = dice.of(widths);
    sizes.value_width = dice.of(widths);
    return sizes;
}

void choose_visibility(Problem& problem, Dice& dice, Place place) {
    const Sizes& sizes = problem.sizes;
    for (std::int64_t b = 0; b < sizes.batch; ++b) problem.offsets.push_back(dice.up_to(sizes.keys + 5) - 3);
    if (dice.one_in(3)) {
        problem.key_lengths.emplace();
        for (std::int64_t b = 0; b < sizes.batch; ++b) problem.key_lengths->push_back(dice.up_to(sizes.keys));
    }
    for (auto* side : {&problem.left, &problem.right}) {
        if (dice.one_in(2)) continue;
        side->emplace();
        const std::int64_t same = dice.of({-1, 0, 0, 3, 29});
        const bool per_head = dice.one_in(2);
        for (std::int64_t h = 0; h < sizes.heads; ++h) (*side)->push_back(per_head ? dice.of({-1, 0, 1, 5, 50}) : same);
    }
    if (dice.one_in(3)) {
        const Shape shape = broadcast_shape({sizes.batch, sizes.heads, sizes.queries, sizes.keys}, dice);
        problem.mask = make_tensor(Element::truth, shape, random_strides(shape, dice, false), place);
        each_element(*problem.mask, [&](std::byte* at) { *at = static_cast<std::byte>(dice.of({0, 1, 1, 255})); });
    }
}

void choose_scores(Problem& problem, Dice& dice, Place place) {
    const Sizes& sizes = problem.sizes;
    problem.scale = dice.one_in(3) ? -0.7f : 1.0f / std::sqrt(static_cast<float>(sizes.width));
    if (dice.one_in(4)) problem.softcap = dice.one_in(2) ? 0.5f : 30.0f;
    if (dice.one_in(3)) problem.sinks = random_floats({sizes.heads}, 3.0, dice, place);
    if (dice.one_in(3)) {
        const Shape shape = dice.one_in(2) ? Shape{sizes.heads} : Shape{sizes.batch, sizes.heads};
        problem.slopes = random_floats(shape, 0.1, dice, place);
    }
    if (dice.one_in(3)) {
        const auto element = static_cast<Element>(dice.up_to(2));
        const Shape shape = broadcast_shape({sizes.batch, sizes.heads, sizes.queries, sizes.keys}, dice);
        problem.bias = make_tensor(element, shape, random_strides(shape, dice, false), place);
        each_element(*problem.bias, [&](std::byte* at) {
            // Whether -infinity hides a NaN is not for the kernels to say.
            write_number(element, dice.one_in(9) && !problem.has_nan ? -INFINITY : dice.number(), at);
        });
    }
}

bool anyone_sees(const Problem& problem, std::int64_t b, std::int64_t g, std::int64_t j) {
    const std::int64_t group = problem.sizes.heads / problem.sizes.kv_heads;
    for (std::int64_t h = g * group; h < (g + 1) * group; ++h)
        for (std::int64_t i = 0; i < problem.sizes.queries; ++i)
            if (problem.sees(b, h, i, j)) return true;
    return false;
}

// One row, in which a NaN may stand where the problem has some.
void fill_row(const Problem& problem, const Tensor& tensor, std::int64_t b, std::int64_t g, std::int64_t j,
              Dice& dice) {
    const bool special = problem.has_nan && dice.one_in(40);
    const std::int64_t width = tensor.argument.shape[3], where = dice.up_to(width - 1);
    for (std::int64_t d = 0; d < width; ++d) {
        write_number(problem.element, special && d == where ? NAN : dice.number(), tensor.at(b, g, j, d));
    }
}

void fill_vectors(Problem& problem, Dice& dice) {
    each_element(problem.query, [&](std::byte* at) { write_number(problem.element, dice.number(), at); });
    for (std::int64_t b = 0; b < problem.sizes.batch; ++b)
        for (std::int64_t g = 0; g < problem.sizes.kv_heads; ++g)
            for (std::int64_t j = 0; j < problem.sizes.keys; ++j) {
                if (!anyone_sees(problem, b, g, j)) continue;
                if (problem.codes) {
                    write_codes(*problem.codes, problem.codes->key, b, g, j, dice, problem.key);
                    write_codes(*problem.codes, problem.codes->value, b, g, j, dice, problem.value);
                } else {
                    fill_row(problem, problem.key, b, g, j, dice);
                    fill_row(problem, problem.value, b, g, j, dice);
                }
            }
}

}  // namespace

bool Problem::sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const auto head = static_cast<std::size_t>(h), sequence = static_cast<std::size_t>(b);
    const std::int64_t behind = offsets[sequence] + i - j;
    if (key_lengths && j >= (*key_lengths)[sequence]) return false;
    if (left && (*left)[head] >= 0 && behind > (*left)[head]) return false;
    if (right && (*right)[head] >= 0 && -behind > (*right)[head]) return false;
    return !mask || *mask->at(b, h, i, j) != std::byte{0};
}

void Problem::clear_results() const {
    for (const Tensor* tensor : {&output, &lse}) {
        each_element(*tensor, [&](std::byte* at) { write_number(tensor->argument.element, NAN, at); });
    }
}

Arguments Problem::arguments() const {
    Arguments given;
    given.query = query.argument, given.key = key.argument, given.value = value.argument;
    given.output = output.argument, given.lse = lse.argument;
    if (mask) given.mask = mask->argument;
    if (bias) given.bias = bias->argument;
    if (sinks) given.sinks = sinks->argument;
    if (slopes) given.slopes = slopes->argument;
    given.offsets = offsets, given.key_lengths = key_lengths, given.left = left, given.right = right;
    given.scale = scale, given.softcap = softcap, given.threads = threads;
    return given;
}

SegmentArguments Problem::segments() const {
    const std::vector<std::int64_t> all(static_cast<std::size_t>(sizes.batch), sizes.keys);
    return {sizes.kv_heads, sizes.keys, sizes.value_width, {codes->argument(key_lengths.value_or(all))}};
}

std::string Problem::name() const {
    static const char* const elements[] = {"float32", "bfloat16", "float16"};
    std::string text = elements[static_cast<int>(element)];
    const std::pair<const char*, std::int64_t> numbers[] = {
        {"B", sizes.batch},  {"H", sizes.heads}, {"G", sizes.kv_heads},    {"L", sizes.queries},
        {"S", sizes.keys},   {"D", sizes.width}, {"Dv", sizes.value_width}};
    for (const auto& [axis, size] : numbers) text += std::string(" ") + axis + "=" + std::to_string(size);
    const std::pair<const char*, bool> options[] = {
        {"key_lengths", key_lengths.has_value()}, {"left", left.has_value()}, {"right", right.has_value()},
        {"mask", mask.has_value()}, {"bias", bias.has_value()}, {"sinks", sinks.has_value()},
        {"slopes", slopes.has_value()}, {"softcap", softcap != 0.0f}, {"NaN", has_nan},
        {"8 bits", codes && codes->bits == 8}, {"4 bits", codes && codes->bits == 4},
        {"blocks", codes && codes->table}};
    for (const auto& [option, given] : options) text += given ? std::string(" ") + option : "";
    return text;
}

Problem make_problem(std::uint64_t seed, Place place, std::int64_t missing) {
    Dice dice(seed);
    Problem problem;
    const Sizes& sizes = problem.sizes = random_sizes(dice);
    const Element element = problem.element = static_cast<Element>(dice.up_to(2));
    const auto vectors = [&](std::int64_t heads, std::int64_t length, std::int64_t width, std::int64_t absent) {
        const Shape shape = {sizes.batch, heads, length, width};
        return make_tensor(element, shape, random_strides(shape, dice, true), place, absent);
    };
    problem.query = vectors(sizes.heads, sizes.queries, sizes.width, 0);
    problem.key = vectors(sizes.kv_heads, sizes.keys, sizes.width, missing);
    problem.value = vectors(sizes.kv_heads, sizes.keys, sizes.value_width, missing);
    problem.output = vectors(sizes.heads, sizes.queries, sizes.value_width, 0);
    problem.lse = packed(Element::f32, {sizes.batch, sizes.heads, sizes.queries}, place);
    problem.threads = static_cast<int>(dice.of({1, 2, 3}));
    if (missing == 0 && dice.one_in(3)) {
        problem.codes =
            make_codes(sizes.batch, sizes.kv_heads, sizes.keys, sizes.width, sizes.value_width, dice, place);
        problem.key = packed(Element::f32, {sizes.batch, sizes.kv_heads, sizes.keys, sizes.width}, place);
        problem.value = packed(Element::f32, {sizes.batch, sizes.kv_heads, sizes.keys, sizes.value_width}, place);
    }
    problem.has_nan = !problem.codes && dice.one_in(6);
    choose_visibility(problem, dice, place);
    choose_scores(problem, dice, place);
    if (missing == 0) fill_vectors(problem, dice);
    return problem;
}

}  // namespace headwise::driver
