// What a product must be, in float64, and how far from it a kernel may be. No kernel's code is used here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gemm.hpp"

namespace k3gate::gemm {

// One output. `value` is of the activations that the variant declares: rounded to INT8, or BF16 as they are.
//
// `bound`, with u = 2^-24 and T = sum of |weight x activation|:
//   INT8   whole numbers are exact; turned to float32, scaled by row and by token, and added over at most
//   depth / 32
//          segments: (3 + depth / 32) u T; by groups of 32 too, with one least step of float32 a group
//          besides
//   BF16   a product of two BF16 is exact in float32; at most as many roundings as terms, segments and
//   scaling:
//          (depth + depth / 32 + 4) u T, and what flushing denormals takes, as tiles and vdpbf16ps do
struct Expected {
  double value;
  double bound;
  double unrounded;  // of the BF16 activations, whatever the variant
  double
      rounding;  // how far rounding the activations may take `value` from it: sum of |weight| x max|x| / 254
  double variance;  // of a sum of such terms with random signs
  double flushed;   // what flushing denormals, or rounding to them, takes at most
};

// One row of weights against all tokens. `activations`: BF16 [tokens, weights.size()].
std::vector<Expected> expect_row(std::span<const double> weights, const std::uint16_t* activations,
                                 std::size_t tokens, Activations kind);

struct Comparison {
  std::size_t checked = 0;    // outputs against the reference
  std::size_t wrong = 0;      // of these beyond the bound, or not a number
  std::size_t unwritten = 0;  // outputs that are not a number, among all
  double worst = 0;  // the largest error in units of its bound; infinity where an output is not a number
  double error = 0;  // root mean square against the unrounded product, relative to it
  // Root mean square of the errors in units of what rounding explains: 2 u sqrt(depth) times the root mean
  // square that sums of such terms have. Rounding errors add up as a random walk, far below `bound`, and what
  // is wrong a little everywhere stays within each bound.
  double drift = 0;
  std::size_t first_row = 0;  // where the first wrong one is
  std::size_t first_token = 0;

  bool ok() const { return checked > 0 && wrong == 0 && unwritten == 0 && drift <= 1; }
};

// Adds what another comparison found.
void merge(Comparison& to, const Comparison& other);

using RowOf = std::function<std::vector<double>(std::size_t)>;

// The listed rows of an output [tokens, row_count] against the reference, and all of it for poison.
Comparison compare(const RowOf& row_of, std::span<const std::size_t> rows, std::size_t row_count,
                   const std::uint16_t* activations, std::size_t tokens, Activations kind,
                   const float* output);

// `count` different row numbers below `rows`, or all of them; of two and more one lies in the first tile and
// one in the last.
std::vector<std::size_t> sample_rows(std::size_t rows, std::size_t count, std::uint64_t seed);

}  // namespace k3gate::gemm
