// Random numbers of the right size for all tensors, fast.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "../gemm/rounding.hpp"
#include "model.hpp"

namespace k3gate::decode {

using gemm::Format;
using gemm::kGroup;

void Model::prepare_fill() {
  std::mt19937_64 dice(setup_.seed);
  each_vec([&](Vec& vec, float mean, float deviation) {
    std::vector<float> values(vec.count, mean);
    if (deviation > 0) {
      std::normal_distribution<float> normal(mean, deviation);
      for (float& value : values) value = gemm::from_bf16(gemm::to_bf16(normal(dice)));
    }
    set(vec, std::move(values));
  });
  for (Layer& layer : layers) {
    if (!setup_.trunk) break;
    set_mix(layer.attention_mix);
    set_mix(layer.mlp_mix);
    if (layer.kda) set_steepness(*layer.kda);
  }
  if (setup_.trunk) set_mix(output_mix);
  each_matrix([&](Matrix& matrix, bool) {
    for (const auto& one : fillers_) {
      if (one->fits(matrix.format(), matrix.depth())) return;
    }
    fillers_.push_back(
        std::make_unique<Filler>(matrix.format(), matrix.depth(), setup_.seed + matrix.depth()));
  });
  filled_ = true;
}

void Model::fill(std::size_t thread) const {
  const auto filler_of = [this](const Matrix& matrix) -> const Filler& {
    return **std::find_if(fillers_.begin(), fillers_.end(),
                          [&](const auto& one) { return one->fits(matrix.format(), matrix.depth()); });
  };
  const std::size_t node = threads_.node[thread];
  std::size_t whole = 0;
  const_cast<Model*>(this)->each_matrix([&](Matrix& matrix, bool undivided) {
    if (!undivided) {
      matrix.fill(thread, filler_of(matrix));
      return;
    }
    // Experts by turns, by threads of their node.
    const std::size_t pool = matrix.shards().front().place.pool;
    if (pool == memory_.interleaved()) {
      if (whole++ % threads_.count() == thread) matrix.fill(0, filler_of(matrix));
    } else if (pool == node) {
      if (whole++ % threads_.of_node(node) == thread - threads_.first[node])
        matrix.fill(0, filler_of(matrix));
    }
  });
  if (!setup_.trunk) return;
  const std::size_t vocabulary = setup_.shape.vocabulary;
  for (std::size_t token = thread * vocabulary / threads_.count();
       token < (thread + 1) * vocabulary / threads_.count(); ++token) {
    std::mt19937_64 dice(setup_.seed * 77 + token);
    auto* const row = memory_.at(embedding_) + token * embedding_row_;
    const std::size_t hidden = setup_.shape.hidden;
    if (setup_.format == Format::kBf16) {
      std::normal_distribution<float> normal;
      for (std::size_t k = 0; k < hidden; ++k) {
        // Sums of four bytes are near enough to normal numbers, and quick.
        const std::uint64_t word = dice();
        int sum = 0;
        for (int byte = 0; byte < 8; ++byte) sum += static_cast<int>(word >> 8 * byte & 255U);
        const std::uint16_t bits = gemm::to_bf16(static_cast<float>(sum - 1020) / 209.0F);
        std::memcpy(row + 2 * k, &bits, sizeof bits);
      }
      continue;
    }
    for (std::size_t k = 0; k < embedding_row_; ++k) row[k] = static_cast<std::byte>(dice());
    if (setup_.format == Format::kMxfp4) {
      for (std::size_t k = 0; k < hidden / kGroup; ++k) row[hidden / 2 + k] = std::byte{125};
    } else {
      const std::uint16_t scale = 0x2000;  // 2^-7
      for (std::size_t k = 0; k < hidden / kGroup; ++k)
        std::memcpy(row + k * gemm::kStoredGroup, &scale, sizeof scale);
    }
  }
}
}  // namespace k3gate::decode
