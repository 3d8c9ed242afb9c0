// What products by tiles need besides tile operations: with AVX-512, as every CPU with tiles has it, and in
// plain C++.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile_products.hpp"

namespace k3gate::gemm {

struct PlainHelp {
  // All tokens' activations, of 16 tokens `blocks` blocks of a line each: rounded to bytes, scales to the
  // workspace, or copied as BF16. What is no token stays as it is: its sums are not used.
  static void prepare_blocks(bool bytes, const Call& call, std::size_t blocks, std::byte* to);
  static void decode(Decoding decoding, const std::byte* packed, std::size_t blocks, std::byte* to);
  // A tile of sums, tokens down, to the output: scaled, stored or added.
  static void finish(bool bytes, const std::byte* sums, const TileRun& run, std::size_t token_tile,
                     const float* token_scales, const Call& call);
  // What was stored past the caches is there for other threads.
  static void complete() {}
};

#if defined(__x86_64__)
struct Avx512Help {
  static void prepare_blocks(bool bytes, const Call& call, std::size_t blocks, std::byte* to);
  static void decode(Decoding decoding, const std::byte* packed, std::size_t blocks, std::byte* to);
  static void finish(bool bytes, const std::byte* sums, const TileRun& run, std::size_t token_tile,
                     const float* token_scales, const Call& call);
  static void complete();
};
#endif

// The same products on the model of the tiles; for tests on any CPU.
void run_modelled(const Call& call, Path path);

}  // namespace k3gate::gemm
