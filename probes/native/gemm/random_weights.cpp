#include "random_weights.hpp"

#include <cmath>
#include <cstring>

#include "rounding.hpp"

namespace k3gate::gemm {
namespace {

constexpr int kDrawnBits = 12;

void fill(std::vector<std::byte>& bytes, std::mt19937_64& dice) {
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const std::uint64_t word = dice();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  for (; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(dice());
}

}  // namespace

OwnedSource random_weights(Format format, std::size_t rows, std::size_t depth, int spread,
                           std::mt19937_64& dice) {
  OwnedSource made{format, rows, depth, {}, {}};
  made.values.resize(value_bytes(format, rows, depth));
  made.scales.resize(scale_bytes(format, rows, depth));
  switch (format) {
    case Format::kMxfp4:
      fill(made.values, dice);
      for (std::size_t i = 0; i < made.scales.size(); ++i)
        made.scales[i] = static_cast<std::byte>(118 + dice() % static_cast<std::uint64_t>(spread + 1));
      break;
    case Format::kInt8:
      fill(made.values, dice);
      for (std::size_t row = 0; row < rows; ++row) {
        const float scale = 0.001F * (1.0F + static_cast<float>(dice() % 1000) / 500.0F);
        std::memcpy(made.scales.data() + row * sizeof scale, &scale, sizeof scale);
      }
      break;
    case Format::kBf16: {
      // Drawn from some thousands of normal numbers: to make each of 10^8 would take half a minute.
      std::normal_distribution<float> normal(0.0F, 0.02F);
      std::vector<std::uint16_t> some(std::size_t{1} << kDrawnBits);
      for (std::uint16_t& value : some) value = to_bf16(normal(dice));
      std::uint64_t word = 0;
      int left = 0;
      for (std::size_t i = 0; i < rows * depth; ++i) {
        if (left < kDrawnBits) {
          word = dice();
          left = 64;
        }
        std::memcpy(made.values.data() + 2 * i, &some[word % some.size()], 2);
        word >>= kDrawnBits;
        left -= kDrawnBits;
      }
      break;
    }
    case Format::kQ8_0:
      fill(made.values, dice);
      for (std::size_t at = 0; at < made.values.size(); at += kStoredGroup) {
        const auto scale = static_cast<std::uint16_t>(0x1419 + dice() % 0x60b);  // 0.001 to 0.003
        std::memcpy(made.values.data() + at, &scale, sizeof scale);
      }
      break;
  }
  return made;
}

std::vector<std::uint16_t> random_activations(std::size_t tokens, std::size_t depth, std::mt19937_64& dice) {
  std::vector<std::uint16_t> made(tokens * depth);
  std::normal_distribution<float> normal;
  for (std::uint16_t& value : made) value = to_bf16(normal(dice) * (dice() % 256 == 0 ? 8.0F : 1.0F));
  return made;
}

}  // namespace k3gate::gemm
