// Arguments as a caller gives them, and the checks that stand between them and any memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention.hpp"

namespace headwise {

enum class Element : std::uint8_t { f32, bf16, f16, truth, i64, i8, u8, i32 };
inline constexpr Element last_element = Element::i32;

// Memory with a shape. The pointer is taken at its word; everything else is checked.
struct TensorArgument {
    void* data = nullptr;
    Element element = Element::f32;
    std::vector<std::int64_t> shape, stride;  // strides in elements
};

struct Arguments {
    TensorArgument query, key, value, output;  // [B, H, L, D], [B, G, S, D], [B, G, S, Dv], [B, H, L, Dv]
    std::optional<TensorArgument> lse;         // [B, H, L], contiguous float32
    std::optional<TensorArgument> mask, bias;  // broadcast to [B, H, L, S]
    std::optional<TensorArgument> sinks;       // [H], contiguous float32
    std::optional<TensorArgument> slopes;      // [H] or [B, H], contiguous float32
    std::vector<std::int64_t> offsets;         // [B]
    std::optional<std::vector<std::int64_t>> key_lengths;  // [B]
    std::optional<std::vector<std::int64_t>> left, right;  // [H]; without: -1, that is, unbounded
    float scale = 1.0f, softcap = 0.0f;
    int threads = 1;
};

// The call that the arguments describe; it points into them. Windows are made complete and cut to position_limit in
// place. std::invalid_argument says which argument does not fit, what was expected and what came.
Call checked_call(Arguments& arguments);

}  // namespace headwise
