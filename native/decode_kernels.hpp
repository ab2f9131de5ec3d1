// What decode.cpp defines per instruction set; see DecodeKernels.
#pragma once

#include "decode.hpp"

namespace headwise::HEADWISE_ISA {

void run_decode_item(const Call& call, const Segment& segment, const DecodeItem& item, std::byte* scratch,
                     float* partial);
void merge_decoded_row(const Call& call, const float* partials, DecodeSlots slots, std::int64_t b, std::int64_t h,
                       std::int64_t i);

}  // namespace headwise::HEADWISE_ISA
