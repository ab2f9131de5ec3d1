// Attention of many queries: keys and values in tiles, each shared by the rows of all query heads that read them.
//
// A call is cut into pieces, each some rows (positions x query heads) of one KV head of one sequence against all keys
// that they see. No row depends on another and tiles lie at fixed keys, so that the same call gives the same bits in
// any number of threads and any cut.
//
// The online softmax over tiles is that of Dao et al. 2022 (arXiv:2205.14135).
#pragma once

#include <cstddef>

#include "attention.hpp"

namespace headwise {

// Rows of the query heads of one KV head that have equal windows; heads of other windows see other tiles. Rows count
// positions first: row n is query n / head_count of heads[n % head_count], so that neighbours see nearly the same keys.
struct PrefillPiece {
    const std::int64_t* heads = nullptr;
    std::int64_t head_count = 0, kv_head = 0, batch = 0;
    std::int64_t first_row = 0, rows = 0;
    std::int64_t pairs = 0;  // of queries and keys, roughly
};

// Rows are computed in panels, and a piece has at most so many of them: their queries and outputs stay in the
// second-level cache together with a tile.
inline constexpr std::int64_t most_panels = 4;

// What each instruction set offers for it.
struct PrefillKernels {
    std::int64_t panel_rows;  // what a panel holds
    // How much memory run_piece needs, at an address that is a multiple of 64.
    std::size_t (*scratch_bytes)(const Call& call);
    void (*run_piece)(const Call& call, const PrefillPiece& piece, std::byte* scratch);
};

// Output and LSE of the whole call, whatever the number of queries; with few of them decoding is faster.
// std::bad_alloc where there is no room for the scratch memory of the threads.
void prefill(const Call& call, const PrefillKernels& kernels);

}  // namespace headwise
