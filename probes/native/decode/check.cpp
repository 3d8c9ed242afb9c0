#include "check.hpp"

#include <algorithm>
#include <cstdio>

#include "checker.hpp"

namespace k3gate::decode {

std::vector<Stage> check_step(const Engine& engine, const Model& truth, std::size_t sampled,
                              std::uint64_t seed) {
  return Checker(engine, truth, sampled, seed).all();
}

Verdict judge(const std::vector<Stage>& stages) {
  Verdict verdict;
  std::size_t checked = 0;
  double worst = 0;
  for (const Stage& stage : stages) {
    const gemm::Comparison& one = stage.found;
    checked += one.checked;
    worst = std::max(worst, one.worst);
    if (one.ok() || !verdict.ok) continue;
    verdict.ok = false;
    char text[200];
    std::snprintf(
        text, sizeof text,
        ": %zu of %zu beyond their bounds, the first at %zu of row %zu; %zu are no numbers; drift %.3g",
        one.wrong, one.checked, one.first_row, one.first_token, one.unwritten, one.drift);
    verdict.detail = stage.name + text;
  }
  if (verdict.ok) {
    char text[120];
    std::snprintf(text, sizeof text, "%zu numbers of %zu stages within %.2g of their bounds", checked,
                  stages.size(), worst);
    verdict.detail = text;
    verdict.ok = checked > 0;
  }
  return verdict;
}

}  // namespace k3gate::decode
