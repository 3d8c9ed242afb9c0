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

// From FP16, which float32 holds exactly.
inline float from_half(std::uint16_t bits) {
  constexpr std::uint32_t kInfinity = 0x7c00;
  const std::uint32_t magnitude = bits & 0x7fffU;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  if (magnitude >= kInfinity) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude - kInfinity) << 13);
  // Exponents of float32 lie 112 higher; as a product also the denormal ones come right.
  return std::bit_cast<float>(sign | magnitude << 13) * 0x1p112F;
}

// What Q8_0 wants of 32 activations besides their bytes.
struct ActivationGroup {
  float scale;         // max|x| / 127
  std::int32_t start;  // what the sum of products begins with
};

// Of a token's activations for a block of Q8_0: 64 bytes, then two groups.
inline constexpr std::size_t kScaledInputs = 64 + 2 * sizeof(ActivationGroup);

}  // namespace k3gate::gemm
