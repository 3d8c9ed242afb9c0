#include "expert.hpp"

#include <algorithm>
#include <cmath>

#include "rounding.hpp"
#include "situ.hpp"

namespace k3gate::gemm {
namespace {

Comparison compare_situ(ExpertWorkspace& workspace, std::size_t tokens, std::size_t inner) {
  Comparison found;
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t i = 0; i < inner; ++i) {
      const auto gate = static_cast<double>(workspace.gate_up()[token * 2 * inner + i]);
      const auto up = static_cast<double>(workspace.gate_up()[token * 2 * inner + inner + i]);
      const auto got = static_cast<double>(from_bf16(workspace.hidden()[token * inner + i]));
      const double ratio = std::fabs(got - situ_exact(gate, up)) / situ_bound(gate, up);
      ++found.checked;
      if (!(ratio <= 1) && found.wrong++ == 0) {
        found.first_row = i;
        found.first_token = token;
      }
      if (!(ratio <= found.worst)) found.worst = std::isnan(ratio) ? HUGE_VAL : ratio;
    }
  }
  return found;
}

}  // namespace

void ExpertWorkspace::reserve(std::size_t tokens, std::size_t width, std::size_t inner) {
  products_.reserve(tokens, std::max(width, inner));
  const auto grow = [](Buffer& buffer, std::size_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  };
  grow(gate_up_, tokens * 2 * inner * sizeof(float));
  grow(hidden_, tokens * inner * sizeof(std::uint16_t));
}

void run_expert(const Variant& variant, const ExpertCall& call) {
  ExpertWorkspace& workspace = *call.workspace;
  const std::size_t inner = call.down->depth;
  variant.run({call.gate_up, call.activations, workspace.gate_up(), call.tokens, &workspace.products()});
  situ(workspace.gate_up(), call.tokens, inner, workspace.hidden());
  variant.run({call.down, workspace.hidden(), call.output, call.tokens, &workspace.products()});
}

Comparison compare_expert(const RowOf& first, const RowOf& second, std::size_t sampled, std::uint64_t seed,
                          const Variant& variant, const ExpertCall& call) {
  ExpertWorkspace& workspace = *call.workspace;
  const std::size_t width = call.down->rows;
  const std::size_t inner = call.down->depth;
  Comparison found = compare(first, sample_rows(2 * inner, sampled, seed), 2 * inner, call.activations,
                             call.tokens, variant.activations, workspace.gate_up());
  merge(found, compare_situ(workspace, call.tokens, inner));
  merge(found, compare(second, sample_rows(width, sampled, seed + 1), width, workspace.hidden(), call.tokens,
                       variant.activations, call.output));
  return found;
}

}  // namespace k3gate::gemm
