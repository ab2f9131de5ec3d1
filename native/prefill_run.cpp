// Cuts a call into pieces and lets threads run them.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "prefill.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace headwise {
namespace {

// Query heads of one KV head whose windows are equal, [first, first + count) in a list of all heads.
struct HeadSet {
    std::int64_t kv_head, first, count;
};

struct HeadSets {
    std::vector<std::int64_t> heads;  // [H]
    std::vector<HeadSet> sets;
};

HeadSets sort_heads(const Call& call) {
    HeadSets sorted;
    for (std::int64_t head = 0; head < call.heads; ++head) sorted.heads.push_back(head);
    const auto key = [&](std::int64_t head) {
        return std::array{head / group_size(call), call.left[head], call.right[head], head};
    };
    std::sort(sorted.heads.begin(), sorted.heads.end(),
              [&](std::int64_t one, std::int64_t other) { return key(one) < key(other); });
    for (std::int64_t at = 0; at < call.heads; ++at) {
        const auto here = key(sorted.heads[static_cast<std::size_t>(at)]);
        const auto before = key(sorted.heads[static_cast<std::size_t>(std::max<std::int64_t>(at - 1, 0))]);
        const bool same_set = at > 0 && std::equal(here.begin(), here.end() - 1, before.begin());
        if (!same_set) sorted.sets.push_back({here[0], at, 0});
        ++sorted.sets.back().count;
    }
    return sorted;
}

// Roughly, from the first and the last row.
std::int64_t count_pairs(const Call& call, const PrefillPiece& piece) {
    const std::int64_t first = piece.first_row / piece.head_count;
    const std::int64_t last = (piece.first_row + piece.rows - 1) / piece.head_count;
    const std::int64_t begin = visible_keys(call, piece.batch, piece.heads[0], first).begin;
    const std::int64_t end = visible_keys(call, piece.batch, piece.heads[0], last).end;
    return piece.rows * std::max<std::int64_t>(end - begin, 0);
}

// Sharing a packed tile saves less with each panel more; eight pieces per thread keep all of them busy to the end.
std::int64_t rows_per_piece(const Call& call, const HeadSets& sorted, std::int64_t panel_rows) {
    std::int64_t panels = 0;
    for (const HeadSet& set : sorted.sets) panels += (set.count * call.queries + panel_rows - 1) / panel_rows;
    panels *= call.batch;
    return panel_rows * std::clamp<std::int64_t>(panels / (8 * std::int64_t{call.threads}), 1, most_panels);
}

// The longest pieces first, so that no thread begins one when the others are done.
std::vector<PrefillPiece> cut(const Call& call, const HeadSets& sorted, std::int64_t panel_rows) {
    const std::int64_t together = rows_per_piece(call, sorted, panel_rows);
    std::vector<PrefillPiece> pieces;
    for (std::int64_t b = 0; b < call.batch; ++b) {
        for (const HeadSet& set : sorted.sets) {
            for (std::int64_t row = 0; row < set.count * call.queries; row += together) {
                PrefillPiece piece{sorted.heads.data() + set.first, set.count, set.kv_head, b, row, 0, 0};
                piece.rows = std::min(together, set.count * call.queries - row);
                piece.pairs = count_pairs(call, piece);
                pieces.push_back(piece);
            }
        }
    }
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const PrefillPiece& one, const PrefillPiece& other) { return one.pairs > other.pairs; });
    return pieces;
}

// Memory at a multiple of 64 bytes.
struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(std::size_t bytes) {
    return Memory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
}

std::int64_t this_thread() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

}  // namespace

void prefill(const Call& call, const PrefillKernels& kernels) {
    const HeadSets sorted = sort_heads(call);
    const std::vector<PrefillPiece> pieces = cut(call, sorted, kernels.panel_rows);
    const auto count = static_cast<std::int64_t>(pieces.size());
    if (count == 0) return;
    const std::int64_t threads = std::clamp<std::int64_t>(call.threads, 1, count);
    // Allocated here, since nothing may be thrown between the threads.
    const std::size_t bytes = (kernels.scratch_bytes(call) + 63) / 64 * 64;
    const Memory scratch = allocate(bytes * static_cast<std::size_t>(threads));
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads)) if (threads > 1)
#endif
    for (std::int64_t at = 0; at < count; ++at) {
        std::byte* own = scratch.get() + bytes * static_cast<std::size_t>(this_thread());
        kernels.run_piece(call, pieces[static_cast<std::size_t>(at)], own);
    }
}

}  // namespace headwise
