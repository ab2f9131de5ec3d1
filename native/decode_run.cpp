// Cuts a call into items, lets threads run them, and merges.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "decode.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace headwise {
namespace {

// Keys that any row of a group may see.
KeyRange group_keys(const Call& call, std::int64_t b, std::int64_t g) {
    KeyRange all{position_limit, 0};
    for (std::int64_t r = 0; r < group_size(call); ++r) {
        for (std::int64_t i = 0; i < call.queries; ++i) {
            const KeyRange one = visible_keys(call, b, g * group_size(call) + r, i);
            if (one.begin >= one.end) continue;
            all = {std::min(all.begin, one.begin), std::max(all.end, one.end)};
        }
    }
    return all;
}

// Keys of one item: enough to make up for what an item costs by itself, and few enough to keep many threads busy. It
// follows from the number of keys alone, so that neither threads nor other sequences change the rounding.
std::int64_t keys_per_item(std::int64_t keys) {
    constexpr std::int64_t fewest = 1024, most_items = most_slots / 2;
    return std::max(fewest, rounded_up((keys + most_items - 1) / most_items, decode_tile));
}

KeyRange both(KeyRange one, KeyRange other) {
    return {std::max(one.begin, other.begin), std::min(one.end, other.end)};
}

struct Plan {
    std::vector<DecodeItem> items;
    std::vector<DecodeSlots> slots;  // [B, G]
};

Plan plan_items(const Call& call, const std::vector<Segment>& segments) {
    Plan plan;
    plan.slots.reserve(static_cast<std::size_t>(call.batch * call.kv_heads));
    std::int64_t slot = 0;
    for (std::int64_t b = 0; b < call.batch; ++b) {
        for (std::int64_t g = 0; g < call.kv_heads; ++g) {
            const KeyRange all = group_keys(call, b, g);
            const std::int64_t first = slot, step = keys_per_item(all.end - all.begin);
            for (std::size_t at = 0; at < segments.size(); ++at) {
                const KeyRange keys = both(all, segment_keys(call, segments[at], b));
                for (std::int64_t begin = keys.begin; begin < keys.end; begin += step) {
                    plan.items.push_back({b, g, {begin, std::min(begin + step, keys.end)}, at, slot++});
                }
            }
            plan.slots.push_back({first, slot - first});
        }
    }
    return plan;
}

// Memory that the caller's thread keeps from call to call, since fresh pages cost more than a short call.
class Workspace {
public:
    std::byte* reserve(std::size_t bytes) {
        if (bytes > bytes_) {
            memory_.reset();
            bytes_ = 0;
            memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{line})));
            bytes_ = bytes;
        }
        return memory_.get();
    }
    void forget_if_above(std::size_t bytes) {
        if (bytes_ <= bytes) return;
        memory_.reset();
        bytes_ = 0;
    }

private:
    static constexpr std::size_t line = 64;
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{line}); }
    };
    std::unique_ptr<std::byte, Free> memory_;
    std::size_t bytes_ = 0;
};

// How many threads pay off: waking one costs about as much as reading some ten thousand bytes.
int threads_for(const Call& call, const std::vector<Segment>& segments, const Plan& plan) {
    constexpr std::int64_t worth_a_thread = 64 << 10;
    std::int64_t bytes = 0;
    for (const DecodeItem& item : plan.items) {
        const Storage storage = segments[item.segment].storage;
        const std::int64_t each = row_bytes(storage, call.type, call.width + call.value_width);
        bytes += (item.keys.end - item.keys.begin) * each;
    }
    const std::int64_t worth = bytes / worth_a_thread;
    const auto items = static_cast<std::int64_t>(plan.items.size());
    return static_cast<int>(std::clamp<std::int64_t>(std::min(worth, items), 1, std::max(call.threads, 1)));
}

int thread_number() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

}  // namespace

void decode(const Call& call, const DecodeKernels& kernels) { decode(call, {whole_segment(call)}, kernels); }

void decode(const Call& call, const std::vector<Segment>& segments, const DecodeKernels& kernels) {
    const Plan plan = plan_items(call, segments);
    const int threads = threads_for(call, segments, plan);
    const std::size_t scratch_bytes = decode_scratch(call, nullptr).bytes;
    const std::int64_t floats = partial_floats(call);
    const std::size_t partial_bytes = plan.items.size() * static_cast<std::size_t>(floats) * sizeof(float);

    static thread_local Workspace workspace;
    std::byte* const memory =
        workspace.reserve(static_cast<std::size_t>(threads) * scratch_bytes + partial_bytes + 64);
    float* const partials = reinterpret_cast<float*>(memory + static_cast<std::size_t>(threads) * scratch_bytes);
    const auto items = static_cast<std::int64_t>(plan.items.size());
    const std::int64_t rows = call.batch * call.heads * call.queries;

#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
    {
        std::byte* const scratch = memory + static_cast<std::size_t>(thread_number()) * scratch_bytes;
#if defined(_OPENMP)
#pragma omp for schedule(dynamic, 1)
#endif
        for (std::int64_t at = 0; at < items; ++at) {
            const DecodeItem& item = plan.items[static_cast<std::size_t>(at)];
            kernels.run_item(call, segments[item.segment], item, scratch, partials + item.slot * floats);
        }
#if defined(_OPENMP)
#pragma omp for schedule(static)
#endif
        for (std::int64_t row = 0; row < rows; ++row) {
            const std::int64_t b = row / (call.heads * call.queries), h = row / call.queries % call.heads;
            const std::int64_t g = h / group_size(call);
            kernels.merge_row(call, partials, plan.slots[static_cast<std::size_t>(b * call.kv_heads + g)], b, h,
                              row % call.queries);
        }
    }
    constexpr std::size_t kept = std::size_t{32} << 20;
    workspace.forget_if_above(kept);
}

}  // namespace headwise
