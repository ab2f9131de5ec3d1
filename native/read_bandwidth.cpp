#include "read_bandwidth.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "cpu_features.hpp"

namespace headwise {
namespace {

using Word = std::uint64_t;
using Clock = std::chrono::steady_clock;

// Sixteen sums side by side: enough loads in flight to keep memory busy, in a form that any compiler turns into vector
// instructions. Integer addition may be reordered, floating-point addition may not.
Word sum_words(const Word* words, std::size_t count) {
    constexpr std::size_t lanes = 16;
    Word sums[lanes] = {};
    std::size_t index = 0;
    for (; index + lanes <= count; index += lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += words[index + lane];
    }
    Word total = 0;
    for (const Word sum : sums) total += sum;
    for (; index < count; ++index) total += words[index];
    return total;
}

// The part of the buffer that one thread owns.
struct Part {
    std::size_t begin, end;
};

Part part_of(std::size_t words, unsigned threads, unsigned thread) {
    const std::size_t share = words / threads, rest = words % threads;
    const std::size_t begin = thread * share + std::min<std::size_t>(thread, rest);
    return {begin, begin + share + (thread < rest ? 1 : 0)};
}

// Stops the clock each time all threads have come: an odd arrival starts a repeat, an even one ends it.
class RepeatClock {
public:
    explicit RepeatClock(std::vector<double>& seconds) : seconds_(seconds) {}

    void arrived() noexcept {
        const Clock::time_point now = Clock::now();
        if (running_) seconds_.push_back(std::chrono::duration<double>(now - start_).count());
        running_ = !running_;
        start_ = now;
    }

private:
    std::vector<double>& seconds_;
    Clock::time_point start_;
    bool running_ = false;
};

// Runs `work(thread)` for every thread, the first one on the caller. Where the system grants fewer threads, those that
// already wait at the gate are let go before the error is passed on.
template <class Work, class Gate>
void run_together(unsigned threads, const Work& work, Gate& gate) {
    std::vector<std::thread> others;
    others.reserve(threads - 1);
    const auto join_all = [&others] {
        for (std::thread& other : others) other.join();
    };
    try {
        for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    } catch (...) {
        for (std::size_t missing = others.size(); missing < threads; ++missing) gate.arrive_and_drop();
        join_all();
        throw;
    }
    work(0);
    join_all();
}

}  // namespace

std::uint64_t default_buffer_bytes() {
    // At least four times the last level, since caches keep part of what streams through them; 256 MiB where the size
    // of the caches is unknown or small; no more than 2 GiB, so that a small machine can afford it.
    constexpr std::uint64_t smallest = std::uint64_t{256} << 20, largest = std::uint64_t{2} << 30;
    return std::clamp(4 * cache_sizes().last_level(), smallest, largest);
}

std::uint64_t expected_checksum(std::uint64_t bytes_read, unsigned repeats) {
    const std::uint64_t words = bytes_read / sizeof(Word);
    // n (n - 1) / 2 without losing the bit that the division drops after an overflow.
    const std::uint64_t sum = words % 2 == 0 ? words / 2 * (words - 1) : (words - 1) / 2 * words;
    return sum * repeats;
}

ReadBandwidth measure_read_bandwidth(unsigned threads, std::uint64_t buffer_bytes, unsigned repeats) {
    const std::size_t words = static_cast<std::size_t>(buffer_bytes / sizeof(Word));
    if (threads == 0 || repeats == 0 || words < threads) {
        throw std::invalid_argument("measure_read_bandwidth: expected at least 1 thread, 1 repeat and 8 bytes per "
                                    "thread, got " + std::to_string(threads) + " threads, " + std::to_string(repeats) +
                                    " repeats and " + std::to_string(buffer_bytes) + " bytes");
    }
    ReadBandwidth result;
    result.bytes_read = words * sizeof(Word);
    result.threads = threads;
    result.seconds.reserve(repeats);

    // Not cleared here: each thread writes its own part first, so that its pages lie in the memory next to it.
    const std::unique_ptr<Word[]> buffer(new Word[words]);
    std::vector<Word> checksums(threads, 0);
    RepeatClock clock(result.seconds);
    const auto all_arrived = [&clock]() noexcept { clock.arrived(); };
    std::barrier gate(static_cast<std::ptrdiff_t>(threads), all_arrived);

    const auto work = [&](unsigned thread) {
        const Part part = part_of(words, threads, thread);
        for (std::size_t index = part.begin; index < part.end; ++index) buffer[index] = index;
        Word checksum = 0;
        for (unsigned repeat = 0; repeat < repeats; ++repeat) {
            gate.arrive_and_wait();
            checksum += sum_words(buffer.get() + part.begin, part.end - part.begin);
            gate.arrive_and_wait();
        }
        checksums[thread] = checksum;  // used by the caller, so that no read may be left out
    };
    run_together(threads, work, gate);
    for (const Word checksum : checksums) result.checksum += checksum;
    return result;
}

}  // namespace headwise
