#include "planted.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "kernels.hpp"

namespace headwise::driver {
namespace {

constexpr std::int64_t missing = 3;

// Some problems have no keys, or see none of the last ones; a sanitizer does not see every kind of load.
constexpr std::uint64_t tries = 30;

bool dies(Way way, const std::string& isa, Place place) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);  // the report of what is expected
        for (std::uint64_t seed = 0; seed < tries; ++seed) {
            Problem problem = make_problem(seed, place, missing);
            problem.threads = 1;  // a forked process has none of the others
            attend(problem, way, isa);
        }
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

}  // namespace

std::vector<Way> ways_of(const Problem& problem) {
    if (problem.codes) return {Way::decode_codes};
    return {Way::decode, Way::prefill};
}

const char* name_of(Way way) {
    return way == Way::decode ? "decode" : way == Way::prefill ? "prefill" : "decode_codes";
}

void attend(const Problem& problem, Way way, const std::string& isa) {
    Arguments arguments = problem.arguments();
    if (way == Way::decode_codes) {
        const SegmentArguments segments = problem.segments();
        arguments.key_lengths.reset();
        stand_in_for_segments(segments, arguments);
        const Call call = checked_call(arguments);
        return decode(call, checked_segments(segments, call), kernels_of(isa).decode);
    }
    const Call call = checked_call(arguments);
    if (way == Way::decode) decode(call, kernels_of(isa).decode);
    else prefill(call, *kernels_of(isa).prefill);
}

int run_planted(const std::vector<std::string>& isas, Place place) {
    int lived = 0;
    for (const std::string& isa : isas) {
        for (const Way way : {Way::decode, Way::prefill}) {
            if (dies(way, isa, place)) continue;
            ++lived;
            std::printf("%s %s: a planted overrun went unnoticed\n", isa.c_str(), name_of(way));
        }
    }
    std::printf("planted overruns: %d noticed, %d unnoticed\n", 2 * static_cast<int>(isas.size()) - lived, lived);
    return lived;
}

}  // namespace headwise::driver
