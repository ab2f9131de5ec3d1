// Prefill in one instruction set; compiled once for each.
#include "prefill_attend.hpp"
#include "prefill_finish.hpp"
#include "prefill_kernels.hpp"
#include "statistics_finish.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

#if defined(HEADWISE_SIMD_BF16)
using BFloat16Mode = Paired;
#else
using BFloat16Mode = Single;
#endif

// The panels of a piece, and the keys that any of their rows sees.
template <class Mode, class Stored>
KeyRange start_panels(const Call& call, const PrefillPiece& piece, std::int64_t count, Scratch<Mode>& scratch) {
    KeyRange keys{call.keys, 0};
    for (std::int64_t at = 0; at < count; ++at) {
        Panel& panel = scratch.panels[at];
        start_panel(call, piece, at, panel);
        pack_queries<Mode, Stored>(call, panel, scratch.query(at));
        for (std::int64_t n = 0; n < scratch.columns * panel.width(); ++n) scratch.output(at)[n] = 0.0f;
        if (call.statistics != nullptr) start_reduced(call, panel, scratch.reduced[at]);
        keys = {smaller(keys.begin, panel.any.begin), larger(keys.end, panel.any.end)};
    }
    return keys;
}

template <class Mode, class Stored>
void run_piece(const Call& call, const PrefillPiece& piece, std::byte* memory) {
    Scratch<Mode> scratch(call, memory);
    const std::int64_t count = (piece.rows + most_rows - 1) / most_rows;
    const KeyRange keys = start_panels<Mode, Stored>(call, piece, count, scratch);
    for (std::int64_t begin = keys.begin / tile_keys * tile_keys; begin < keys.end; begin += tile_keys) {
        const KeyRange part{larger(keys.begin, begin), smaller(keys.end, begin + tile_keys)};
        scratch.tile.begin = begin;
        pack_keys<Mode, Stored>(call, piece.batch, piece.kv_head, part, scratch.tile);
        pack_values<Mode, Stored>(call, piece.batch, piece.kv_head, part, scratch.tile);
        for (std::int64_t at = 0; at < count; ++at)
            attend_tile<Mode, Stored>(call, scratch.panels[at], scratch);
    }
    for (std::int64_t at = 0; at < count; ++at) {
        close_totals(scratch.panels[at], Mode::depth == 2);
        finish_panel<Stored>(call, scratch.panels[at], scratch.output(at));
        if (call.statistics != nullptr) finish_statistics(call, scratch.panels[at], scratch.reduced[at]);
    }
}

std::size_t scratch_bytes(const Call& call) {
    if (call.type == Type::bf16) return Scratch<BFloat16Mode>(call, nullptr).bytes;
    return Scratch<Single>(call, nullptr).bytes;
}

void run(const Call& call, const PrefillPiece& piece, std::byte* scratch) {
    if (call.type == Type::f32) run_piece<Single, float>(call, piece, scratch);
    if (call.type == Type::f16) run_piece<Single, Half>(call, piece, scratch);
    if (call.type == Type::bf16) run_piece<BFloat16Mode, BFloat16>(call, piece, scratch);
}

}  // namespace

const PrefillKernels prefill_kernels = {most_rows, scratch_bytes, run};

}  // namespace headwise::HEADWISE_ISA
