// Random choices that are the same wherever the driver runs.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace headwise::driver {

class Dice {
public:
    explicit Dice(std::uint64_t seed) : engine_(seed) {}

    std::int64_t up_to(std::int64_t most) {
        return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most + 1));
    }
    bool one_in(std::int64_t many) { return up_to(many - 1) == 0; }
    std::int64_t of(const std::vector<std::int64_t>& choices) {
        return choices[static_cast<std::size_t>(up_to(static_cast<std::int64_t>(choices.size()) - 1))];
    }
    // Not std::normal_distribution, whose numbers differ from library to library. Variance 1.
    double number() {
        double sum = -6.0;
        for (int n = 0; n < 12; ++n) sum += static_cast<double>(engine_() >> 11) * 0x1p-53;
        return sum;
    }

private:
    std::mt19937_64 engine_;
};

}  // namespace headwise::driver
