#include <algorithm>
#include <cmath>

#include "../gemm/situ.hpp"
#include "checker.hpp"

namespace k3gate::decode {

std::vector<Checker::Chosen> Checker::chosen(std::span<const std::int16_t> ids) const {
  std::vector<Chosen> all;
  const std::size_t groups = own_.groups();
  std::vector<std::size_t> slots(groups);
  for (std::size_t expert = 0; expert < shape_.experts; ++expert) {
    Chosen one;
    one.expert = expert;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (static_cast<std::size_t>(ids[i]) == expert) one.rows.push_back(i / shape_.used);
    }
    if (one.rows.empty()) continue;
    one.group = (own_.setup().placement == Placement::kReplicated ? all.size() : expert) % groups;
    one.node = groups == 1 ? 0 : one.group;
    one.first = slots[one.group];
    slots[one.group] += one.rows.size();
    one.number = all.size();
    all.push_back(std::move(one));
  }
  for (Chosen& one : all) one.of = all.size();
  return all;
}

void Checker::check_moe(const Moe& moe, const Moe& truth) {
  const std::size_t used = shape_.used;
  const auto ids = engine_.last_ids().subspan((shape_.layers - 1) * rows_ * used, rows_ * used);
  const bool trunk = own_.setup().trunk;
  if (trunk) {
    product("the router", moe.router, truth.router, work_.moe_x.at[0], work_.scores);
    check_weights(moe, ids);
    product("latent down", moe.latent_down, truth.latent_down, work_.moe_x.at[0], work_.latent);
  }
  const std::vector<Chosen> all = chosen(ids);
  check_rows(moe, all);
  check_experts(moe, truth, all);
  check_sums(truth, all, ids);
  if (!trunk) return;
  product("latent up", moe.latent_up, truth.latent_up, work_.normed.at[0], work_.up_y);
  if (moe.shared) {
    check_mlp("shared experts", *moe.shared, *truth.shared, work_.moe_x, work_.shared_gate_up,
              work_.shared_hidden, work_.shared_y);
  }
}

void Checker::check_weights(const Moe& moe, std::span<const std::int16_t> ids) {
  const std::vector<float> scores = outputs(moe.router, work_.scores);
  gemm::Comparison found;
  for (std::size_t row = 0; row < rows_; ++row) {
    double sum = 1e-20;
    Doubles wanted(shape_.used);
    for (std::size_t k = 0; k < shape_.used; ++k) {
      const auto id = static_cast<std::size_t>(ids[row * shape_.used + k]);
      wanted[k] = sigmoid(static_cast<double>(scores[row * moe.router.rows() + id]));
      sum += wanted[k];
    }
    for (std::size_t k = 0; k < shape_.used; ++k)
      see(found, static_cast<double>(engine_.last_weights()[row * shape_.used + k]), wanted[k] / sum,
          kFloats * wanted[k] / sum, k, row);
  }
  add("weights of experts", found);
}

void Checker::check_rows(const Moe& moe, const std::vector<Chosen>& all) {
  gemm::Comparison found;
  const std::vector<float> latent =
      own_.setup().trunk ? outputs(moe.latent_down, work_.latent) : std::vector<float>();
  for (const Chosen& one : all) {
    for (const std::size_t row : one.rows) {
      for (std::size_t n = 0; n < own_.threads().nodes(); ++n) {
        if (own_.groups() > 1 && n != one.group) continue;
        const std::uint16_t* const got = work_.z.row(n, row);
        const std::uint16_t* const home = work_.z.row(home_node(row), row);
        for (std::size_t i = 0; i < shape_.width; ++i) {
          const double wanted =
              latent.empty() ? bf16(home[i]) : static_cast<double>(latent[row * moe.latent_down.rows() + i]);
          see(found, bf16(got[i]), wanted, std::fabs(wanted) * kHalfStep + 1e-30, i, row);
        }
      }
    }
  }
  add("rows of experts", found);
}

void Checker::check_experts(const Moe& moe, const Moe& truth, const std::vector<Chosen>& all) {
  gemm::Comparison up;
  gemm::Comparison middle;
  gemm::Comparison down;
  for (const std::size_t i : gemm::sample_rows(all.size(), std::max<std::size_t>(1, sampled_ / 2), dice_())) {
    const Chosen& one = all[i];
    const Mlp& mlp = *moe.experts[one.group][one.expert];
    // Truth may be placed otherwise.
    const Mlp* true_one = nullptr;
    for (const auto& group : truth.experts) {
      if (group[one.expert]) true_one = &*group[one.expert];
    }
    const std::size_t count = one.rows.size();
    std::vector<std::uint16_t> input(count * shape_.width);
    for (std::size_t r = 0; r < count; ++r)
      std::copy_n(work_.z.row(one.node, one.rows[r]), shape_.width, input.data() + r * shape_.width);
    const auto kind = engine_.variant(mlp.gate_up.format(), count).activations;
    std::vector<float> gate_up(count * 2 * shape_.inner);
    gather(one, work_.expert_gate_up, gate_up);
    gemm::merge(
        up, gemm::compare([&](std::size_t row) { return true_one->gate_up.row(row); }, sample(mlp.gate_up),
                          2 * shape_.inner, input.data(), count, kind, gate_up.data()));
    for (std::size_t r = 0; r < count; ++r)
      activation(middle, gate_up.data() + r * 2 * shape_.inner,
                 work_.expert_hidden.row(one.node, one.first + r), shape_.inner, one.rows[r]);
    gemm::merge(down,
                gemm::compare([&](std::size_t row) { return true_one->down.row(row); }, sample(mlp.down),
                              shape_.width, work_.expert_hidden.row(one.node, one.first), count, kind,
                              work_.expert_out.row(one.node, one.first)));
  }
  add("experts: gate and up", up);
  add("experts: SiTU", middle);
  add("experts: down", down);
}

void Checker::gather(const Chosen& one, const Work::Floats& from, std::vector<float>& to) const {
  const std::size_t width = 2 * shape_.inner;
  for (std::size_t r = 0; r < one.rows.size(); ++r) {
    std::copy_n(from.row(one.node, one.first + r), width, to.data() + r * width);
    if (own_.groups() > 1) continue;
    for (std::size_t n = 1; n < own_.threads().nodes(); ++n) {
      // Threads take even shares of all tiles of all experts, in panels of four tiles.
      for (std::size_t i = 0; i < width; ++i) {
        if (computed_on(one, i) == n) to[r * width + i] = from.row(n, one.first + r)[i];
      }
    }
  }
}

std::size_t Checker::computed_on(const Chosen& one, std::size_t row) const {
  const std::size_t units = (2 * shape_.inner / gemm::kTileRows + 3) / 4;
  const std::size_t unit = one.number * units + row / gemm::kTileRows / 4;
  const std::size_t all = one.of * units;
  const std::size_t threads = own_.threads().count();
  std::size_t thread = 0;
  while (all * (thread + 1) / threads <= unit) ++thread;
  return own_.threads().node[thread];
}

void Checker::check_sums(const Moe& truth, const std::vector<Chosen>& all,
                         std::span<const std::int16_t> ids) {
  gemm::Comparison found;
  const std::size_t used = shape_.used;
  for (std::size_t row = 0; row < rows_; ++row) {
    Doubles total(shape_.width);
    Doubles sizes(shape_.width);
    for (std::size_t k = 0; k < used; ++k) {
      const auto id = static_cast<std::size_t>(ids[row * used + k]);
      const auto one =
          std::find_if(all.begin(), all.end(), [id](const Chosen& each) { return each.expert == id; });
      const auto slot =
          one->first +
          static_cast<std::size_t>(std::find(one->rows.begin(), one->rows.end(), row) - one->rows.begin());
      const auto weight = static_cast<double>(engine_.last_weights()[row * used + k]);
      for (std::size_t i = 0; i < shape_.width; ++i) {
        const double term = weight * static_cast<double>(work_.expert_out.row(one->node, slot)[i]);
        total[i] += term;
        sizes[i] += std::fabs(term);
      }
    }
    double squares = 0;
    for (const double value : total) squares += value * value;
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(shape_.width) + static_cast<double>(kEpsilon));
    for (std::size_t i = 0; i < shape_.width; ++i) {
      if (!own_.setup().trunk) {
        see(found, static_cast<double>(work_.hidden.row(0, row)[i]), total[i], sizes[i] * kFloats + 1e-30, i,
            row);
        continue;
      }
      const double weight = factor * static_cast<double>(truth.norm.values[i]);
      for (const auto* at : work_.normed.at)
        see(found, bf16(at[row * shape_.width + i]), total[i] * weight,
            std::fabs(total[i] * weight) * (kHalfStep + kFloats) + sizes[i] * std::fabs(weight) * kFloats +
                1e-30,
            i, row);
    }
  }
  add("sums of experts", found);
}

}  // namespace k3gate::decode
