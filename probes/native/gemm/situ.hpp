// SiTU, the activation of Kimi K3's experts, in float32: 4 tanh(a / 4) sigmoid(a) x 25 tanh(b / 25).
#pragma once

#include <cstddef>
#include <cstdint>

namespace k3gate::gemm {

// gate_up: float32 [tokens, 2 x width], the gates of a token before its ups; to: BF16 [tokens, width].
// NaN stays NaN; see situ_bound.
void situ(const float* gate_up, std::size_t tokens, std::size_t width, std::uint16_t* to);

// The same in float64.
double situ_exact(double gate, double up);

// How far a BF16 result of `situ` may lie from the exact value: half a step of BF16, and float32's own
// errors.
double situ_bound(double gate, double up);

}  // namespace k3gate::gemm
