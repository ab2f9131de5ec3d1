// The kernels against a plain loop in double precision, without Python: for other processors under an emulator, and for
// sanitizers.
//
//     headwise_driver [--cases N] [--seed N] [--isa NAME] [--memory plain|before_guard|after_guard] [--plant]
//
// Every case runs in every instruction set (or in that one), by the decoding and the prefill kernels, or by decoding
// over codes. It ends with 1 and the seed of a case where a result is wrong, and with a signal where memory is overrun.
// With --plant overruns are planted instead of that, and it ends with 1 where one goes unnoticed.
#include <cstdio>
#include <stdexcept>

#include "kernels.hpp"
#include "planted.hpp"
#include "truth.hpp"

namespace headwise::driver {
namespace {

struct Options {
    std::uint64_t cases = 400, seed = 1;
    std::vector<std::string> isas = kernel_names();
    Place place = Place::plain;
    bool plant = false;
};

Place place_of(const std::string& name) {
    if (name == "plain") return Place::plain;
    if (name == "before_guard") return Place::before_guard;
    if (name == "after_guard") return Place::after_guard;
    throw std::invalid_argument("--memory: expected plain, before_guard or after_guard, got " + name);
}

Options options_of(int count, char** words) {
    Options options;
    for (int at = 1; at < count; ++at) {
        const std::string word = words[at];
        if (word == "--plant") {
            options.plant = true;
            continue;
        }
        if (at + 1 == count) throw std::invalid_argument("expected a value behind " + word);
        const std::string value = words[++at];
        if (word == "--cases") options.cases = std::stoull(value);
        else if (word == "--seed") options.seed = std::stoull(value);
        else if (word == "--isa") options.isas = {kernels_of(value).name};
        else if (word == "--memory") options.place = place_of(value);
        else throw std::invalid_argument("expected --cases, --seed, --isa, --memory or --plant, got " + word);
    }
    return options;
}

// Every way in one instruction set; how many results were wrong.
int run_case(const Problem& problem, const Truth& truth, const std::string& isa, std::uint64_t seed) {
    int wrong = 0;
    for (const Way way : ways_of(problem)) {
        problem.clear_results();
        attend(problem, way, isa);
        const bool in_pairs = isa == "avx512_bf16" && way == Way::prefill && problem.element == Element::bf16;
        const std::string found = difference(problem, truth, in_pairs);
        if (found.empty()) continue;
        ++wrong;
        std::printf("%s %s, seed %llu (%s): %s\n", isa.c_str(), name_of(way), static_cast<unsigned long long>(seed),
                    problem.name().c_str(), found.c_str());
    }
    return wrong;
}

int run(const Options& options) {
    if (options.plant) return run_planted(options.isas, options.place) == 0 ? 0 : 1;
    int wrong = 0, runs = 0;
    for (std::uint64_t seed = options.seed; seed < options.seed + options.cases; ++seed) {
        const Problem problem = make_problem(seed, options.place);
        const Truth truth = truth_of(problem);
        for (const std::string& isa : options.isas) {
            wrong += run_case(problem, truth, isa, seed);
            runs += static_cast<int>(ways_of(problem).size());
        }
    }
    std::string names;
    for (const std::string& isa : options.isas) names += " " + isa;
    std::printf("%llu cases,%s: %d passed, %d failed\n", static_cast<unsigned long long>(options.cases), names.c_str(),
                runs - wrong, wrong);
    return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace headwise::driver

int main(int count, char** words) {
    try {
        return headwise::driver::run(headwise::driver::options_of(count, words));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "headwise_driver: %s\n", error.what());
        return 2;
    }
}
