#include "proof.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "buffer.hpp"
#include "expert.hpp"
#include "random_weights.hpp"

namespace k3gate::gemm {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// A packed matrix that owns its memory.
struct OwnedPack {
  std::vector<std::size_t> tiles;
  Buffer memory;
  Packed view{};

  explicit OwnedPack(const Source& source) {
    const std::vector<std::byte> bytes = pack(source, tiles);
    memory = Buffer(bytes.size());
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    view = Packed{source.format, source.rows, source.depth, memory.data(), &tiles};
  }
};

void plant(OwnedSource& source, Fault fault, std::mt19937_64& dice) {
  const std::size_t row = dice() % source.rows;
  const std::size_t row_bytes = source.values.size() / source.rows;
  std::byte* const values = source.values.data() + row * row_bytes;
  if (fault == Fault::kScale) {
    if (source.format == Format::kMxfp4) {
      std::byte& scale = source.scales[row * (source.depth / kGroup) + dice() % (source.depth / kGroup)];
      scale = static_cast<std::byte>(std::to_integer<unsigned>(scale) + 1);
    } else if (source.format == Format::kInt8) {
      float scale = 0;
      std::memcpy(&scale, source.scales.data() + row * sizeof scale, sizeof scale);
      scale *= 2;
      std::memcpy(source.scales.data() + row * sizeof scale, &scale, sizeof scale);
    } else if (source.format == Format::kQ8_0) {
      std::byte* const group = values + dice() % (source.depth / kGroup) * kStoredGroup;
      std::uint16_t bits = 0;
      std::memcpy(&bits, group, kHalfBytes);
      bits = static_cast<std::uint16_t>(bits + 0x400U);  // the exponent of FP16
      std::memcpy(group, &bits, kHalfBytes);
    } else {
      std::byte* const group = values + dice() % (source.depth / kGroup) * kGroup * 2;
      for (std::size_t i = 0; i < kGroup; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, group + 2 * i, 2);
        bits = static_cast<std::uint16_t>(bits + 0x80U);  // the exponent of BF16
        std::memcpy(group + 2 * i, &bits, 2);
      }
    }
  } else if (fault == Fault::kNibbles) {
    if (source.format == Format::kMxfp4) {
      for (std::size_t i = 0; i < row_bytes; ++i) {
        const auto byte = std::to_integer<unsigned>(values[i]);
        values[i] = static_cast<std::byte>((byte >> 4 | byte << 4) & 255U);
      }
    } else if (source.format == Format::kQ8_0) {
      for (std::size_t i = 0; i < row_bytes; i += kStoredGroup) {
        for (std::size_t k = kHalfBytes; k < kStoredGroup; k += 2)
          std::swap(values[i + k], values[i + k + 1]);
      }
    } else {
      const std::size_t size = row_bytes / source.depth;
      for (std::size_t i = 0; i + 2 * size <= row_bytes; i += 2 * size)
        std::swap_ranges(values + i, values + i + size, values + i + size);
    }
  }
}

void lose_row(float* output, std::size_t tokens, std::size_t rows, std::mt19937_64& dice) {
  const std::size_t row = dice() % rows;
  for (std::size_t token = 0; token < tokens; ++token) output[token * rows + row] = kPoison;
}

void check_shape(std::size_t tokens, std::size_t rows, std::size_t depth) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (tokens == 0 || tokens > kMostTokens) throw std::invalid_argument("tokens are 1 to 512");
  if (rows == 0 || rows > kMost || depth == 0 || depth > kMost / 16)
    throw std::invalid_argument("rows and depth of a proof are at least 1 and bounded");
}

RowOf row_of(const OwnedSource& source) {
  return [&source](std::size_t row) { return source_row(source.view(), row); };
}

}  // namespace

namespace {

std::vector<std::uint16_t> inputs_under(Fault fault, std::vector<std::uint16_t> activations,
                                        std::size_t depth) {
  if (fault == Fault::kTail) {
    for (std::size_t end = depth; end <= activations.size(); end += depth)
      activations[end - 1] = activations[end - 2] = 0;
  }
  return activations;
}

void enlarge(std::vector<float>& output) {
  for (float& value : output) value *= 1.01F;
}

}  // namespace

Fault fault_named(std::string_view name) {
  if (name.empty()) return Fault::kNone;
  if (name == "scale") return Fault::kScale;
  if (name == "nibbles") return Fault::kNibbles;
  if (name == "row") return Fault::kRow;
  if (name == "gain") return Fault::kGain;
  if (name == "tail") return Fault::kTail;
  throw std::invalid_argument("no such fault");
}

Comparison prove(const Variant& variant, std::size_t tokens, std::size_t rows, std::size_t depth, int spread,
                 std::uint64_t seed, Fault fault) {
  check_shape(tokens, rows, depth);
  if (spread < 0 || spread > 100) throw std::invalid_argument("the spread of exponents is 0 to 100");
  std::mt19937_64 dice(seed);
  const OwnedSource source = random_weights(variant.format, rows, depth, spread, dice);
  const std::vector<std::uint16_t> activations = random_activations(tokens, depth, dice);
  OwnedSource given = source;
  plant(given, fault, dice);
  const OwnedPack packed(given.view());
  std::vector<float> output(tokens * rows, kPoison);
  Workspace workspace;
  workspace.reserve(tokens, depth);
  const std::vector<std::uint16_t> used = inputs_under(fault, activations, depth);
  variant.run({&packed.view, used.data(), output.data(), tokens, &workspace});
  if (fault == Fault::kRow) lose_row(output.data(), tokens, rows, dice);
  if (fault == Fault::kGain) enlarge(output);
  return compare(row_of(source), sample_rows(rows, rows, seed), rows, activations.data(), tokens,
                 variant.activations, output.data());
}

Comparison prove_expert(const Variant& variant, std::size_t tokens, std::size_t width, std::size_t inner,
                        std::uint64_t seed, Fault fault) {
  check_shape(tokens, 2 * inner, width);
  check_shape(tokens, width, inner);
  std::mt19937_64 dice(seed);
  const OwnedSource first = random_weights(variant.format, 2 * inner, width, 2, dice);
  const OwnedSource second = random_weights(variant.format, width, inner, 2, dice);
  const std::vector<std::uint16_t> activations = random_activations(tokens, width, dice);
  OwnedSource given = second;
  plant(given, fault, dice);
  const OwnedPack gate_up(first.view());
  const OwnedPack down(given.view());
  std::vector<float> output(tokens * width, kPoison);
  ExpertWorkspace workspace;
  workspace.reserve(tokens, width, inner);
  std::fill_n(workspace.gate_up(), tokens * 2 * inner, kPoison);
  std::fill_n(workspace.hidden(), tokens * inner, std::uint16_t{0x7fc0});
  const std::vector<std::uint16_t> used = inputs_under(fault, activations, width);
  run_expert(variant, {&gate_up.view, &down.view, used.data(), output.data(), tokens, &workspace});
  if (fault == Fault::kRow) lose_row(output.data(), tokens, width, dice);
  if (fault == Fault::kGain) enlarge(output);
  const ExpertCall call{&gate_up.view, &down.view, activations.data(), output.data(), tokens, &workspace};
  return compare_expert(row_of(first), row_of(second), 2 * inner + width, seed, variant, call);
}

}  // namespace k3gate::gemm
