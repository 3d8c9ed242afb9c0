// Matrix products as the experts of Kimi K3 need them, for every instruction set that has a path. No Python
// here.
//
//   output[tokens, rows] = activations[tokens, depth] x weights[rows, depth]^T
//
// Activations are BF16, row-major; outputs float32, row-major. Weights lie packed by `pack` (weights.hpp),
// which is done once, at load time. A variant that says Activations::kInt8 rounds each token's activations to
// INT8 within the call, so within what is timed: q = rint(x * (127 / max|x|)), computed in float32.
// kInt8Groups does so for each 32 columns of a token, as ggml does for Q8_0, but keeps max|x| / 127 in
// float32 and not in FP16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "paths.hpp"
#include "weights.hpp"
#include "workspace.hpp"

namespace k3gate::gemm {

enum class Activations { kBf16, kInt8, kInt8Groups };

std::string_view name_of(Activations activations);  // "bf16", "int8", "int8_groups"

inline constexpr std::size_t kMostTokens = 512;

struct Call {
  const Packed* weights;
  const std::uint16_t* activations;  // BF16 [tokens, depth]
  float* output;                     // [tokens, rows]
  std::size_t tokens;                // 1 to kMostTokens
  Workspace* workspace;              // reserved for these tokens and this depth, one per thread
};

struct Variant {
  Format format;
  Path path;
  Activations activations;
  void (*run)(const Call& call);
};

// A multiplication and an addition count as two; the work that decoding takes is not counted.
constexpr double flops(std::size_t tokens, std::size_t rows, std::size_t depth) {
  return 2.0 * static_cast<double>(tokens) * static_cast<double>(rows) * static_cast<double>(depth);
}

// All variants of this build, whether or not this CPU can run them; of one format, the best paths first.
std::span<const Variant> variants();

// nullptr where this build has none.
const Variant* find_variant(std::string_view format, std::string_view path);

// The one entry of each family of paths.
namespace family {
std::span<const Variant> amx();
std::span<const Variant> avx512_vnni();
std::span<const Variant> avx512_bf16();
std::span<const Variant> avx512();
std::span<const Variant> avx_vnni();
std::span<const Variant> avx2();
std::span<const Variant> generic();
}  // namespace family

}  // namespace k3gate::gemm
