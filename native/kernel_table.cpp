// The kernels of one instruction set; compiled once for each.
#include "decode_kernels.hpp"
#include "kernels.hpp"
#include "prefill_kernels.hpp"
#include "quantize_kernels.hpp"

#define HEADWISE_TEXT_OF(word) #word
#define HEADWISE_TEXT(word) HEADWISE_TEXT_OF(word)

namespace headwise::HEADWISE_ISA {

extern const Kernels kernel_table;
const Kernels kernel_table = {
    HEADWISE_TEXT(HEADWISE_ISA), {run_decode_item, merge_decoded_row}, quantize_head, &prefill_kernels};

}  // namespace headwise::HEADWISE_ISA
