// MXFP4 by vpdpbusd where codes can be looked up by vpermb. For x86-64.
#pragma once

#include "gemm.hpp"

namespace k3gate::gemm {

// Needs AVX-512 F, BW, DQ, VL, VNNI and VBMI.
void run_mxfp4_vbmi(const Call& call);

}  // namespace k3gate::gemm
