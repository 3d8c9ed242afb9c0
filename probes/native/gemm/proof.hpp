// Whether a variant computes what it should, before any of its speeds counts. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gemm.hpp"
#include "reference.hpp"

namespace k3gate::gemm {

// Mistakes to plant in what a kernel is given, so that a proof can be seen to fail.
enum class Fault {
  kNone,
  kScale,    // one scale of one row is twice what it should be (BF16: 32 weights of it are)
  kNibbles,  // the two codes of each byte of one row change places (others: each two neighbours of one row)
  kRow,      // one row is never written
  kGain,     // every output a hundredth too large
  kTail,     // the last two columns of the depth left out
};

Fault fault_named(std::string_view name);  // as above, "" for none; throws std::invalid_argument

// Fresh weights and activations from `seed`, outputs filled with NaN, every row compared.
// `spread`: as random_weights takes it; above 3, tiles are cut in segments.
Comparison prove(const Variant& variant, std::size_t tokens, std::size_t rows, std::size_t depth, int spread,
                 std::uint64_t seed, Fault fault);

// The same of a whole expert [width -> inner x 2 -> width].
Comparison prove_expert(const Variant& variant, std::size_t tokens, std::size_t width, std::size_t inner,
                        std::uint64_t seed, Fault fault);

}  // namespace k3gate::gemm
