// Memory that a product needs besides its operands, taken before it is timed.
#pragma once

#include <cstddef>

#include "buffer.hpp"

namespace k3gate::gemm {

// From one token's activations to the next one's: an odd number of lines, for those of several tokens not to
// meet in a few sets of a cache.
constexpr std::size_t padded_row(std::size_t bytes) { return (bytes + 63) / 64 * 64 | 64; }

class Workspace {
 public:
  // Grows to what products of so many tokens and such a depth take, with any variant.
  void reserve(std::size_t tokens, std::size_t depth);

  std::byte* activations() { return activations_.data(); }  // rounded or copied, by rows of padded_row
  float* scales() { return scales_.as<float>(); }           // one for each token
  std::byte* decoded() { return decoded_.data(); }          // a chunk of a few tiles of weights
  std::byte* sums() { return sums_.data(); }                // of four tiles of rows and all tokens

 private:
  Buffer activations_;
  Buffer scales_;
  Buffer decoded_;
  Buffer sums_;
};

}  // namespace k3gate::gemm
