// BF16 and INT8 activations: the rules of rounding, in float32, the same on every path.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace k3gate::gemm {

// Below this a token counts as zeros: the factor 127 / max|x| must be finite.
inline constexpr float kLeastActivation = 1e-30F;

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest, ties to even; NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace k3gate::gemm
