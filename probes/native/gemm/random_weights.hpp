// Weights and activations for proofs and timing. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "weights.hpp"

namespace k3gate::gemm {

// A source that owns its bytes.
struct OwnedSource {
  Format format;
  std::size_t rows;
  std::size_t depth;
  std::vector<std::byte> values;
  std::vector<std::byte> scales;

  Source view() const { return {format, rows, depth, values.data(), scales.data()}; }
};

// Uniform codes and bytes, normal BF16, Q8_0 scales from 0.001 to 0.003. MXFP4 scales of one row lie within
// `spread` + 1 successive powers of two; 2 is what normal weights give, as the largest of 32 of them is
// mostly between 1.2 and 4 deviations.
OwnedSource random_weights(Format format, std::size_t rows, std::size_t depth, int spread,
                           std::mt19937_64& dice);

// BF16, normal with deviation 1, and one in 256 eight times as large, as hidden states have outliers.
std::vector<std::uint16_t> random_activations(std::size_t tokens, std::size_t depth, std::mt19937_64& dice);

}  // namespace k3gate::gemm
