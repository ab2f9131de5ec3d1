// Quantizing the tokens of one head, compiled once per instruction set.
#include "quantize_kernels.hpp"

#include "simd.hpp"

namespace headwise::HEADWISE_ISA {
namespace {

// The largest size of a number of the vector; NaN where one of them is none.
template <class T>
float largest_size(const T* vector, std::int64_t width) {
    const std::int64_t whole = width / lanes * lanes;
    Vector most = zero(), unfinite = zero();
    const auto take = [&](Vector v) {
        most = maximum(absolute(v), most);
        unfinite = fused(v, zero(), unfinite);  // infinity and NaN times 0 is NaN
    };
    for (std::int64_t at = 0; at < whole; at += lanes) take(load(vector + at));
    if (whole < width) take(load_first(vector + whole, width - whole));
    return sum(unfinite) == 0.0f ? largest(most) : std::numeric_limits<float>::quiet_NaN();
}

// Not below the smallest normal number, for number / scale must stay finite, and not so large that limit * scale rounds
// to infinity.
float scale_of(float most, int limit) {
    using Limits = std::numeric_limits<float>;
    if (most != most) return most;
    const double epsilon = Limits::epsilon();
    const auto ceiling = static_cast<float>(static_cast<double>(Limits::max()) / limit * (1.0 - epsilon));
    return smaller(larger(most / static_cast<float>(limit), Limits::min()), ceiling);
}

// As many codes as there are lanes, as whole float32; 0 where there is no scale.
template <class T>
HEADWISE_INLINE void codes_of(const T* vector, std::int64_t left, float scale, float* codes) {
    const Vector numbers = left >= lanes ? load(vector) : load_first(vector, larger(left, std::int64_t{0}));
    store(codes, scale != scale ? zero() : nearest(numbers / broadcast(scale)));
}

template <class T>
void write_bytes(const T* vector, std::int64_t width, float scale, std::int8_t* to) {
    float codes[lanes];
    for (std::int64_t at = 0; at < width; at += lanes) {
        codes_of(vector + at, width - at, scale, codes);
        const std::int64_t count = smaller(width - at, std::int64_t{lanes});
        for (std::int64_t i = 0; i < count; ++i) to[at + i] = static_cast<std::int8_t>(codes[i]);
    }
}

// Two neighbours into a byte, the first one low, each plus 8; an odd last one has 0 beside it.
template <class T>
void write_halves(const T* vector, std::int64_t width, float scale, std::uint8_t* to) {
    float codes[lanes];
    for (std::int64_t at = 0; at < width; at += lanes) {
        codes_of(vector + at, width - at, scale, codes);
        const std::int64_t count = smaller(width - at, std::int64_t{lanes});
        for (std::int64_t i = 0; i < count; i += 2) {
            const int low = static_cast<int>(codes[i]) + 8;
            const int high = i + 1 < count ? static_cast<int>(codes[i + 1]) + 8 : 0;
            to[(at + i) / 2] = static_cast<std::uint8_t>(low | high << 4);
        }
    }
}

template <class T>
void quantize_typed(const QuantizeCall& call, std::int64_t b, std::int64_t g) {
    const auto place = [&](const std::array<std::int64_t, 3>& stride, std::int64_t t) {
        return b * stride[0] + g * stride[1] + t * stride[2];
    };
    for (std::int64_t t = 0; t < call.tokens; ++t) {
        const T* vector = reinterpret_cast<const T*>(call.vectors + place(call.vector_stride, t));
        const float scale = scale_of(largest_size(vector, call.width), call.bits == 8 ? 127 : 7);
        call.scales[place(call.scale_stride, t)] = scale;
        std::byte* codes = call.codes + place(call.code_stride, t);
        if (call.bits == 8) write_bytes(vector, call.width, scale, reinterpret_cast<std::int8_t*>(codes));
        else write_halves(vector, call.width, scale, reinterpret_cast<std::uint8_t*>(codes));
    }
}

}  // namespace

void quantize_head(const QuantizeCall& call, std::int64_t b, std::int64_t g) {
    if (call.type == Type::f32) return quantize_typed<float>(call, b, g);
    if (call.type == Type::bf16) return quantize_typed<BFloat16>(call, b, g);
    return quantize_typed<Half>(call, b, g);
}

}  // namespace headwise::HEADWISE_ISA
