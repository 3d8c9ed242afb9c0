// MXFP4 to BF16 in registers of 512 bits. For x86-64.
#pragma once

#include <cstddef>

namespace k3gate::gemm {

// `count` blocks of codes (16 rows x 128 columns) to four times as many of BF16 (16 rows x 32 columns): the
// whole numbers of weights.hpp, which BF16 holds exactly. Needs AVX-512 F and BW.
void decode_to_bf16_avx512(const std::byte* blocks, std::size_t count, std::byte* to);

}  // namespace k3gate::gemm
