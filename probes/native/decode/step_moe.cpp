// The routed experts: each group of threads executes those that it holds, for the rows that chose them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../gemm/situ.hpp"
#include "step.hpp"

namespace k3gate::decode {
namespace {

using gemm::kTileRows;

constexpr std::uint32_t kElsewhere = 0xffffffffU;
constexpr std::size_t kPanel = 4;  // tiles that kernels read at once
// Scores of BF16 products differ by about so much from those of exact ones.
constexpr float kTie = 2e-3F;

std::size_t share(std::size_t all, std::size_t part, std::size_t parts) { return all * part / parts; }

}  // namespace

void Worker::moe(std::size_t layer, std::size_t number) {
  const Moe& moe = *model_.layers[layer].moe;
  const Shape& shape = model_.setup().shape;
  const bool trunk = model_.setup().trunk;
  if (trunk) {
    multiply(moe.router, work_.moe_x, work_.scores, [](const Shard&) {});
    mark(Part::kRouter);
    multiply(moe.latent_down, work_.moe_x, work_.latent, [](const Shard&) {});
    mark(Part::kLatent);
    if (moe.shared) {
      multiply(moe.shared->gate_up, work_.moe_x, work_.shared_gate_up,
               [&](const Shard& shard) { activate(shard, work_.shared_gate_up, work_.shared_hidden); });
    }
    mark(Part::kShared);
    meet();
  }
  const std::size_t at = (number * model_.layers.size() + layer) * rows_ * shape.used;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!is_home(row)) continue;
    const std::size_t own = at + row * shape.used;
    route(moe, row, run_.forced == nullptr ? nullptr : run_.forced + own, run_.ids + own);
  }
  mark(Part::kRouter);
  meet();
  plan_experts(run_.ids + at);
  if (model_.threads().nodes() > 1) {
    bring_rows();
    mark(Part::kRouted);
    meet();
  }
  experts_up(moe);
  mark(Part::kRouted);
  meet();
  experts_down(moe);
  mark(Part::kRouted);
  meet();
  experts_sum();
  mark(Part::kRouted);
  meet();
  finish_experts(moe);
  mark(Part::kRouted);
  if (!trunk) return;
  meet();
  multiply(moe.latent_up, work_.normed, work_.up_y,
           [&](const Shard& shard) { add_to_sum(shard, work_.up_y, layer, false); });
  mark(Part::kLatent);
  if (moe.shared) {
    multiply(moe.shared->down, work_.shared_hidden, work_.shared_y,
             [&](const Shard& shard) { add_to_sum(shard, work_.shared_y, layer, false); });
  }
  mark(Part::kShared);
}

// The experts of a row, their weights, and its activations for them.
void Worker::route(const Moe& moe, std::size_t row, const std::int16_t* forced, std::int16_t* ids) {
  const Shape& shape = model_.setup().shape;
  const std::size_t used = shape.used;
  float* const weights = run_.weights + row * used;
  if (!model_.setup().trunk) {
    std::copy_n(forced, used, ids);
    std::fill_n(weights, used, 1.0F / static_cast<float>(used));
    vectors_.to_bf16(run_.inputs + row * shape.width, shape.width, work_.z.row(node_, row));
    return;
  }
  float* const scores = floats_.data();
  float* const biased = scores + shape.router_rows;
  fetch(moe.router, work_.scores, row, 0, shape.router_rows, scores);
  vectors_.sigmoid(scores, shape.router_rows, scores);
  for (std::size_t i = 0; i < shape.router_rows; ++i) biased[i] = scores[i] + moe.bias.at[node_][i];
  // The best of those that are held, and the first that is left out; of equals the first.
  std::int16_t best[kMostUsed + 1];
  std::size_t count = 0;
  const std::size_t wanted = std::min(used + 1, shape.experts);
  for (std::size_t i = 0; i < shape.experts; ++i) {
    if (count == wanted && !(biased[i] > biased[best[count - 1]])) continue;
    std::size_t to = count < wanted ? count++ : count - 1;
    for (; to > 0 && biased[i] > biased[best[to - 1]]; --to) best[to] = best[to - 1];
    best[to] = static_cast<std::int16_t>(i);
  }
  ++counters_.routed;
  if (count > used && biased[best[used - 1]] - biased[best[used]] < kTie) ++counters_.tied;
  std::copy_n(forced == nullptr ? best : forced, used, ids);
  if (forced != nullptr) {
    counters_.choices += used;
    for (std::size_t k = 0; k < used; ++k)
      counters_.agreed += std::find(best, best + used, forced[k]) != best + used ? 1 : 0;
  }
  float sum = 1e-20F;
  for (std::size_t k = 0; k < used; ++k) sum += scores[ids[k]];
  for (std::size_t k = 0; k < used; ++k) weights[k] = scores[ids[k]] / sum;
  fetch(moe.latent_down, work_.latent, row, 0, shape.width, scores);
  vectors_.to_bf16(scores, shape.width, work_.z.row(node_, row));
}

// Which experts the own group executes, for which rows: each thread finds it for itself.
void Worker::plan_experts(const std::int16_t* ids) {
  const Setup& setup = model_.setup();
  const std::size_t used = setup.shape.used;
  const std::size_t choices = rows_ * used;
  const std::size_t groups = model_.groups();
  std::fill(counts_.begin(), counts_.end(), 0U);
  for (std::size_t i = 0; i < choices; ++i) ++counts_[static_cast<std::size_t>(ids[i])];
  active_.clear();
  std::size_t number = 0;
  std::uint32_t slot = 0;
  for (std::size_t expert = 0; expert < setup.shape.experts; ++expert) {
    if (counts_[expert] == 0) continue;
    const std::size_t by = setup.placement == Placement::kReplicated ? number : expert;
    ++number;
    group_of_expert_[expert] = static_cast<std::uint8_t>(by % groups);
    if (by % groups != group_) {
      counts_[expert] = 0;
      continue;
    }
    slots_[expert] = slot;
    active_.push_back({expert, slot, counts_[expert]});
    slot += counts_[expert];
  }
  std::fill(groups_of_row_.begin(), groups_of_row_.end(), 0U);
  for (std::size_t i = 0; i < choices; ++i) {
    const auto expert = static_cast<std::size_t>(ids[i]);
    groups_of_row_[i / used] |= 1U << group_of_expert_[expert];
    slot_of_choice_[i] = kElsewhere;
    if (counts_[expert] == 0) continue;
    row_of_slot_[slots_[expert]] = static_cast<std::uint32_t>(i / used);
    slot_of_choice_[i] = slots_[expert]++;
  }
}

// Rows of activations travel to the nodes whose threads need them.
void Worker::bring_rows() {
  const std::size_t used = model_.setup().shape.used;
  const std::size_t width = model_.setup().shape.width;
  for (std::size_t row = rank_; row < rows_; row += model_.threads().of_node(node_)) {
    const std::size_t home = home_node(row);
    if (home == node_) continue;
    const auto* const choice = slot_of_choice_.data() + row * used;
    if (std::all_of(choice, choice + used, [](std::uint32_t slot) { return slot == kElsewhere; })) continue;
    if (run_.lapse == Lapse::kLostRow && row == 0) continue;
    std::memcpy(work_.z.row(node_, row), work_.z.row(home, row), width * sizeof(std::uint16_t));
    counters_.experts_in += width * sizeof(std::uint16_t);
  }
}

void Worker::experts_up(const Moe& moe) {
  const Shape& shape = model_.setup().shape;
  const std::size_t tiles = 2 * shape.inner / kTileRows;
  const std::size_t units = (tiles + kPanel - 1) / kPanel;
  const std::size_t begin = share(active_.size() * units, group_rank_, group_size_);
  const std::size_t end = share(active_.size() * units, group_rank_ + 1, group_size_);
  const bool spread = model_.groups() == 1 && model_.threads().nodes() > 1;
  for (std::size_t unit = begin; unit < end;) {
    const Active& one = active_[unit / units];
    const std::size_t last = std::min(end, (unit / units + 1) * units);
    const std::size_t first_tile = unit % units * kPanel;
    const std::size_t end_tile = std::min(tiles, (last - 1) % units * kPanel + kPanel);
    unit = last;
    const Matrix& matrix = moe.experts[group_][one.expert]->gate_up;
    const Shard& whole = matrix.shards().front();
    offsets_.assign(whole.offsets.begin() + static_cast<std::ptrdiff_t>(first_tile),
                    whole.offsets.begin() + static_cast<std::ptrdiff_t>(end_tile + 1));
    const std::size_t rows = (end_tile - first_tile) * kTileRows;
    const gemm::Packed packed{matrix.format(), rows, matrix.depth(), whole.packed.data, &offsets_};
    const std::uint16_t* input = work_.z.row(node_, row_of_slot_[one.first]);
    if (one.count > 1) {
      for (std::size_t i = 0; i < one.count; ++i)
        std::memcpy(gathered_.data() + i * shape.width, work_.z.row(node_, row_of_slot_[one.first + i]),
                    shape.width * sizeof(std::uint16_t));
      input = gathered_.data();
    }
    float* const to = work_.expert_gate_up.row(node_, one.first) + first_tile * kTileRows;
    float* const direct = one.count == 1 ? to : scratch_.data();
    variants_.of(matrix.format(), one.count).run({&packed, input, direct, one.count, &workspace_});
    weigh(matrix, one.count, rows);
    for (std::size_t i = 0; i < one.count; ++i) {
      float* const gate_up = to + i * work_.expert_gate_up.stride;
      if (one.count > 1) std::memcpy(gate_up, direct + i * rows, rows * sizeof(float));
      const std::size_t first = first_tile * kTileRows / 2;
      gemm::situ(gate_up, rows / 2 / kTileRows, kTileRows,
                 work_.expert_hidden.row(node_, one.first + i) + first);
      if (spread) push(work_.expert_hidden, one.first + i, first, rows / 2);
    }
  }
}

void Worker::experts_down(const Moe& moe) {
  const Shape& shape = model_.setup().shape;
  const std::size_t tiles = shape.width / kTileRows;
  const std::size_t units = (tiles + kPanel - 1) / kPanel;
  const std::size_t begin = share(active_.size() * units, group_rank_, group_size_);
  const std::size_t end = share(active_.size() * units, group_rank_ + 1, group_size_);
  // Outputs of a group that is spread over the nodes meet on the first.
  const std::size_t meeting = model_.groups() == 1 ? 0 : node_;
  for (std::size_t unit = begin; unit < end;) {
    const Active& one = active_[unit / units];
    const std::size_t last = std::min(end, (unit / units + 1) * units);
    const std::size_t first_tile = unit % units * kPanel;
    const std::size_t end_tile = std::min(tiles, (last - 1) % units * kPanel + kPanel);
    unit = last;
    const Matrix& matrix = moe.experts[group_][one.expert]->down;
    const Shard& whole = matrix.shards().front();
    offsets_.assign(whole.offsets.begin() + static_cast<std::ptrdiff_t>(first_tile),
                    whole.offsets.begin() + static_cast<std::ptrdiff_t>(end_tile + 1));
    const std::size_t rows = (end_tile - first_tile) * kTileRows;
    const gemm::Packed packed{matrix.format(), rows, matrix.depth(), whole.packed.data, &offsets_};
    float* const to = work_.expert_out.row(meeting, one.first) + first_tile * kTileRows;
    float* const direct = one.count == 1 ? to : scratch_.data();
    variants_.of(matrix.format(), one.count)
        .run({&packed, work_.expert_hidden.row(node_, one.first), direct, one.count, &workspace_});
    weigh(matrix, one.count, rows);
    for (std::size_t i = 0; i < one.count && one.count > 1; ++i)
      std::memcpy(to + i * work_.expert_out.stride, direct + i * rows, rows * sizeof(float));
    if (meeting != node_) counters_.experts_out += one.count * rows * sizeof(float);
  }
}

// By weights, of each row what the own group has; each thread some columns.
void Worker::experts_sum() {
  const std::size_t used = model_.setup().shape.used;
  const std::size_t tiles = model_.setup().shape.width / kTileRows;
  const std::size_t meeting = model_.groups() == 1 ? 0 : node_;
  const std::size_t threads = model_.threads().of_node(meeting);
  if (meeting != node_) return;
  const std::size_t first = share(tiles, rank_, threads) * kTileRows;
  const std::size_t count = share(tiles, rank_ + 1, threads) * kTileRows - first;
  if (count == 0) return;
  for (std::size_t row = 0; row < rows_; ++row) {
    float* const to = work_.sums.row(meeting, row) + first;
    std::fill_n(to, count, 0.0F);
    for (std::size_t k = 0; k < used; ++k) {
      const std::uint32_t slot = slot_of_choice_[row * used + k];
      if (slot != kElsewhere)
        vectors_.add(work_.expert_out.row(meeting, slot) + first, run_.weights[row * used + k], count, to);
    }
  }
}

// Rows travel back to their homes.
void Worker::finish_experts(const Moe& moe) {
  const Setup& setup = model_.setup();
  const std::size_t width = setup.shape.width;
  float* const total = floats_.data();
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!is_home(row)) continue;
    std::fill_n(total, width, 0.0F);
    for (std::size_t group = 0; group < model_.groups(); ++group) {
      if ((groups_of_row_[row] >> group & 1U) == 0) continue;
      vectors_.add(work_.sums.row(group, row), 1.0F, width, total);
      if (group != node_) counters_.experts_out += width * sizeof(float);
    }
    if (!setup.trunk) {
      std::memcpy(work_.hidden.row(0, row), total, width * sizeof(float));
      continue;
    }
    const float factor =
        1 / std::sqrt(vectors_.dot(total, total, width) / static_cast<float>(width) + kEpsilon);
    vectors_.normalise(total, moe.norm.at[node_], factor, width, work_.normed.row(node_, row));
    push(work_.normed, row, 0, width);
  }
}

}  // namespace k3gate::decode
