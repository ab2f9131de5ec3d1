// Quantizes all heads of all sequences, on several threads where there is enough to do.
#include <algorithm>

#include "quantize.hpp"

namespace headwise {

void quantize(const QuantizeCall& call, QuantizeKernel kernel) {
    // Waking a thread costs about as much as some ten thousand numbers.
    constexpr std::int64_t worth_a_thread = 32 << 10;
    const std::int64_t heads = call.batch * call.heads;
    const std::int64_t worth = heads * call.tokens * call.width / worth_a_thread;
    const auto threads = static_cast<int>(std::clamp<std::int64_t>(std::min(worth, heads), 1, call.threads));
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
    for (std::int64_t at = 0; at < heads; ++at) kernel(call, at / call.heads, at % call.heads);
    static_cast<void>(threads);
}

}  // namespace headwise
