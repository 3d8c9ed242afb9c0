// What the units of one core can do at most: operands in registers, no memory. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "paths.hpp"

namespace k3gate::gemm {

struct Peak {
  Path path;
  std::string_view type;         // "int8", "bf16", "float32": of the operands
  double flops_per_turn;         // a multiplication and an addition are two
  double flops_per_instruction;  // so that a rate and a clock tell instructions per cycle
  void (*run)(std::uint64_t turns);
};

// All that are compiled in, whether or not this CPU can run them.
std::span<const Peak> peaks();

const Peak* find_peak(std::string_view path, std::string_view type);

}  // namespace k3gate::gemm
