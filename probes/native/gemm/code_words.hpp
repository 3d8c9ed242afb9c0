// MXFP4 codes as BF16.
#pragma once

#include <cstdint>

namespace k3gate::gemm {

// Four tables of 32 words: the 16 doubled codes shifted by 0 to 3 places, as BF16, twice. 64-byte aligned.
const std::uint16_t* code_words();

}  // namespace k3gate::gemm
