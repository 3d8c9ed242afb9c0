// Memory that a product needs besides its operands, taken before it is timed.
#pragma once

#include <cstddef>

#include "buffer.hpp"

namespace k3gate::gemm {

class Workspace {
 public:
  // Grows to what products of so many tokens and such a depth take, with any variant.
  void reserve(std::size_t tokens, std::size_t depth);

  std::byte* activations() { return activations_.data(); }  // rounded or rearranged; 64-byte aligned
  float* scales() { return scales_.as<float>(); }           // one for each token
  std::byte* decoded() { return decoded_.data(); }          // the weights of a few tiles; 64-byte aligned

 private:
  Buffer activations_;
  Buffer scales_;
  Buffer decoded_;
};

}  // namespace k3gate::gemm
