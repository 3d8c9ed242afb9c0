// One expert of Kimi K3 for some tokens: output = W2 situ(W1 x, W3 x).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gemm.hpp"
#include "reference.hpp"

namespace k3gate::gemm {

// What lies between the products; reserved before it is timed.
class ExpertWorkspace {
 public:
  void reserve(std::size_t tokens, std::size_t width, std::size_t inner);

  Workspace& products() { return products_; }
  float* gate_up() { return gate_up_.as<float>(); }                // [tokens, 2 x inner]
  std::uint16_t* hidden() { return hidden_.as<std::uint16_t>(); }  // BF16 [tokens, inner]

 private:
  Workspace products_;
  Buffer gate_up_;
  Buffer hidden_;
};

struct ExpertCall {
  const Packed* gate_up;             // [2 x inner, width]: W1 above W3
  const Packed* down;                // [width, inner]
  const std::uint16_t* activations;  // BF16 [tokens, width]
  float* output;                     // [tokens, width]
  std::size_t tokens;
  ExpertWorkspace* workspace;
};

void run_expert(const Variant& variant, const ExpertCall& call);

// Each stage of the last call against the float64 of what that stage was given, so that bounds stay tight:
// rows of the first product, all of SiTU, rows of the second. `first` and `second`: rows as float64.
Comparison compare_expert(const RowOf& first, const RowOf& second, std::size_t sampled, std::uint64_t seed,
                          const Variant& variant, const ExpertCall& call);

}  // namespace k3gate::gemm
