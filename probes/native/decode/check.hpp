// What the last step left, computed again in float64, stage by stage: each from what that stage was given, so
// that bounds stay tight. Of each kind of layer the last one is there. No kernel's code is used here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../gemm/reference.hpp"
#include "engine.hpp"

namespace k3gate::decode {

struct Stage {
  std::string name;
  gemm::Comparison found;
};

// `truth`: whose weights count; of a timed run the engine's own model, whose rows are unpacked from the
// memory that was read. `sampled`: rows of each product, and experts and heads.
std::vector<Stage> check_step(const Engine& engine, const Model& truth, std::size_t sampled,
                              std::uint64_t seed);

// One line; `ok` where every stage is.
struct Verdict {
  bool ok = true;
  std::string detail;
};
Verdict judge(const std::vector<Stage>& stages);

}  // namespace k3gate::decode
