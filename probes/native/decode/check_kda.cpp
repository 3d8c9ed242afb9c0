#include <algorithm>
#include <cmath>

#include "../gemm/rounding.hpp"
#include "checker.hpp"

namespace k3gate::decode {
namespace {

constexpr double kTaps = 0x1p-21;  // of the terms of a convolution: some roundings of float32

}  // namespace

void Checker::check_kda(const Kda& kda, const Kda& truth) {
  product("KDA's first products", kda.proj, truth.proj, work_.kda_x.at[0], work_.kda_proj);
  const std::vector<float> proj = outputs(kda.proj, work_.kda_proj);
  const std::size_t low = kda.proj.order().row(4, 0);
  halves("KDA's low rank", work_.kda_low, shape_.decay_rank, [&](std::size_t row) {
    const float* const from = proj.data() + row * kda.proj.rows() + low;
    return Doubles(from, from + shape_.decay_rank);
  });
  product("KDA's decays", kda.f_b, truth.f_b, work_.kda_low.at[0], work_.kda_given);
  check_head_of_kda(kda, truth, proj);
  product("KDA's last product", kda.out, truth.out, work_.kda_o.at[0], work_.kda_y);
}

void Checker::check_head_of_kda(const Kda& kda, const Kda& truth, const std::vector<float>& proj) {
  const Probe& probe = engine_.probe();
  const std::size_t dim = shape_.head_dim;
  const std::size_t head = probe.head;
  const std::size_t width = shape_.convolution;
  const float* const row = proj.data() + probe.row * kda.proj.rows();
  Doubles mixed[3];
  Doubles loose[3];  // what float32 may be off by where taps cancel: SiLU is nowhere steeper than 1.1
  double sizes[3] = {};
  for (std::size_t i = 0; i < 3; ++i) {
    const float* const input = row + kda.proj.order().row(i, head * dim);
    for (std::size_t c = 0; c < dim; ++c) {
      const float* const taps = truth.taps[i].values.data() + (head * dim + c) * width;
      double sum = static_cast<double>(taps[width - 1]) * static_cast<double>(input[c]);
      double terms = std::fabs(sum);
      for (std::size_t tap = 0; tap + 1 < width; ++tap) {
        const double term = static_cast<double>(taps[tap]) *
                            static_cast<double>(probe.past[(i * (width - 1) + tap) * dim + c]);
        sum += term;
        terms += std::fabs(term);
      }
      mixed[i].push_back(sum * sigmoid(sum));
      loose[i].push_back(terms * kTaps);
      sizes[i] += mixed[i].back() * mixed[i].back();
    }
  }
  const double query = 1 / std::sqrt((sizes[0] + static_cast<double>(kL2Epsilon)) * static_cast<double>(dim));
  const double key = 1 / std::sqrt(sizes[1] + static_cast<double>(kL2Epsilon));
  const std::vector<float> given = outputs(kda.f_b, work_.kda_given);
  Doubles decay(dim);
  const double steepness = std::exp(static_cast<double>(truth.a_log.values[head]));
  for (std::size_t c = 0; c < dim; ++c) {
    const double a = static_cast<double>(given[probe.row * kda.f_b.rows() + head * dim + c]) +
                     static_cast<double>(truth.bias.values[head * dim + c]);
    decay[c] = std::exp(static_cast<double>(kLeastDecay) * sigmoid(steepness * a));
    mixed[0][c] *= query;
    mixed[1][c] *= key;
    loose[0][c] *= query;
    loose[1][c] *= key;
  }
  const double beta = sigmoid(static_cast<double>(row[kda.proj.order().row(5, head)]));
  std::size_t node = 0;
  while (head >= own_.first_head[node + 1]) ++node;
  const std::size_t sequence = engine_.batch().sequence[probe.row];
  const std::size_t heads = own_.first_head[node + 1] - own_.first_head[node];
  const float* const state = own_.memory().at<float>(kda.states[node]) +
                             (sequence * heads + head - own_.first_head[node]) * dim * dim;
  gemm::Comparison found;
  Doubles output(dim);
  Doubles terms(dim);
  for (std::size_t j = 0; j < dim; ++j) {
    double known = 0;
    double size = 0;
    double off = loose[2][j];
    for (std::size_t i = 0; i < dim; ++i) {
      const double kept = decay[i] * static_cast<double>(probe.state[i * dim + j]);
      known += mixed[1][i] * kept;
      size += std::fabs(mixed[1][i] * kept);
      off += loose[1][i] * std::fabs(kept);
    }
    const double change = beta * (mixed[2][j] - known);
    const double room = beta * ((std::fabs(mixed[2][j]) + size) * kFloats + off);
    for (std::size_t i = 0; i < dim; ++i) {
      const double kept = decay[i] * static_cast<double>(probe.state[i * dim + j]);
      const double wanted = kept + mixed[1][i] * change;
      const double bound = kFloats * (std::fabs(kept) + std::fabs(mixed[1][i] * change)) +
                           std::fabs(mixed[1][i]) * room + loose[1][i] * std::fabs(change) + 1e-30;
      see(found, static_cast<double>(state[i * dim + j]), wanted, bound, i * dim + j, probe.row);
      output[j] += mixed[0][i] * wanted;
      terms[j] +=
          std::fabs(mixed[0][i]) * (std::fabs(wanted) * kFloats + bound) + loose[0][i] * std::fabs(wanted);
    }
  }
  add("the state of a head of KDA", found);
  gemm::Comparison out;
  double squares = 0;
  for (const double value : output) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEpsilon));
  for (std::size_t j = 0; j < dim; ++j) {
    const double gate = sigmoid(static_cast<double>(row[kda.proj.order().row(3, head * dim + j)])) *
                        static_cast<double>(truth.norm.values[j]) * factor;
    for (const auto* at : work_.kda_o.at)
      see(out, bf16(at[probe.row * work_.kda_o.stride + head * dim + j]), output[j] * gate,
          std::fabs(output[j] * gate) * (kHalfStep + 2 * kFloats) + 2 * terms[j] * std::fabs(gate) + 1e-30, j,
          probe.row);
  }
  add("the output of a head of KDA", out);
}

}  // namespace k3gate::decode
