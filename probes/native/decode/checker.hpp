// The stages of check.hpp, one after the other; what each kind of layer has is in a file of its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../gemm/rounding.hpp"
#include "../gemm/situ.hpp"
#include "check.hpp"

namespace k3gate::decode {

using Doubles = std::vector<double>;

inline constexpr double kHalfStep = 0x1p-8;  // of BF16, relative, and some room
inline constexpr double kFloats =
    0x1p-17;  // what some tens of roundings of float32, and its exponentials, take

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

inline double bf16(std::uint16_t bits) { return static_cast<double>(gemm::from_bf16(bits)); }

// Adds one number to a comparison, as those of products do.
inline void see(gemm::Comparison& found, double got, double wanted, double bound, std::size_t row,
                std::size_t token) {
  const double ratio = std::fabs(got - wanted) / bound;
  ++found.checked;
  if (!(ratio <= 1) && found.wrong++ == 0) {
    found.first_row = row;
    found.first_token = token;
  }
  found.worst = ratio <= found.worst ? found.worst : std::isnan(ratio) ? HUGE_VAL : ratio;
}

class Checker {
 public:
  Checker(const Engine& engine, const Model& truth, std::size_t sampled, std::uint64_t seed)
      : engine_(engine),
        own_(engine.model()),
        truth_(truth),
        work_(engine.work()),
        shape_(own_.setup().shape),
        rows_(engine.batch().rows),
        sampled_(sampled),
        dice_(seed) {}

  std::vector<Stage> all() {
    const std::size_t none = shape_.layers;
    std::size_t kda = none;
    std::size_t mla = none;
    std::size_t dense = none;
    std::size_t moe = none;
    for (std::size_t i = 0; i < shape_.layers; ++i) {
      const Layer& layer = own_.layers[i];
      if (layer.kda) kda = i;
      if (layer.mla) mla = i;
      if (layer.dense) dense = i;
      if (layer.moe) moe = i;
    }
    if (kda != none) check_kda(*own_.layers[kda].kda, *truth_.layers[kda].kda);
    if (mla != none) check_mla(*own_.layers[mla].mla, *truth_.layers[mla].mla, mla);
    if (dense != none) {
      const Mlp& one = *own_.layers[dense].dense;
      const Mlp& true_one = *truth_.layers[dense].dense;
      check_mlp("dense", one, true_one, work_.dense_x, work_.dense_gate_up, work_.dense_hidden,
                work_.dense_y);
    }
    if (moe != none) check_moe(*own_.layers[moe].moe, *truth_.layers[moe].moe);
    if (own_.setup().trunk) check_head();
    return std::move(stages_);
  }

 private:
  std::size_t home_node(std::size_t row) const {
    const Threads& threads = own_.threads();
    return threads.node[threads.home[row % threads.count()]];
  }

  // Of all nodes: [row][rows of the matrix].
  std::vector<float> outputs(const Matrix& matrix, const Work::Floats& from) const {
    std::vector<float> all(rows_ * matrix.rows());
    const Threads& threads = own_.threads();
    for (std::size_t n = 0; n < threads.nodes(); ++n) {
      const std::size_t begin = matrix.first_row_of(threads.first[n]);
      const std::size_t end = matrix.first_row_of(threads.first[n + 1]);
      for (std::size_t row = 0; row < rows_; ++row)
        std::copy(from.row(n, row) + begin, from.row(n, row) + end,
                  all.begin() + static_cast<std::ptrdiff_t>(row * matrix.rows() + begin));
    }
    return all;
  }

  void add(std::string name, gemm::Comparison found) { stages_.push_back({std::move(name), found}); }

  // Rows of a matrix that fill up its last tile belong to no tensor: outputs of them are not compared.
  std::vector<std::size_t> sample(const Matrix& matrix) {
    std::vector<std::size_t> rows;
    const Order& order = matrix.order();
    for (std::size_t piece = 0; piece < order.pieces(); ++piece) {
      for (const std::size_t row : gemm::sample_rows(order.piece_rows(piece), sampled_, dice_()))
        rows.push_back(order.row(piece, row));
    }
    return rows;
  }

  void product(const std::string& name, const Matrix& matrix, const Matrix& true_one,
               const std::uint16_t* input, const Work::Floats& output) {
    const std::vector<float> given = outputs(matrix, output);
    add(name, gemm::compare([&true_one](std::size_t row) { return true_one.row(row); }, sample(matrix),
                            matrix.rows(), input, rows_, engine_.variant(matrix.format(), rows_).activations,
                            given.data()));
  }

  // BF16 on every node, of values that are known.
  template <class Wanted>
  void halves(const std::string& name, const Work::Halves& rows, std::size_t count, const Wanted& wanted) {
    gemm::Comparison found;
    for (std::size_t row = 0; row < rows_; ++row) {
      const Doubles values = wanted(row);
      // What sums of larger terms may be wrong by.
      double room = 1e-30;
      for (std::size_t i = 0; i < count; ++i)
        room += std::fabs(values[i]) * 0x1p-21 / static_cast<double>(count);
      for (std::size_t n = 0; n < rows.at.size(); ++n) {
        for (std::size_t i = 0; i < count; ++i)
          see(found, bf16(rows.row(n, row)[i]), values[i],
              std::fabs(values[i]) * (kHalfStep + kFloats) + room, i, row);
      }
    }
    add(name, found);
  }

  static Doubles normalised(const float* from, std::size_t count, const Vec& weight) {
    double squares = 0;
    for (std::size_t i = 0; i < count; ++i)
      squares += static_cast<double>(from[i]) * static_cast<double>(from[i]);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(count) + static_cast<double>(kEpsilon));
    Doubles all(count);
    for (std::size_t i = 0; i < count; ++i)
      all[i] = static_cast<double>(from[i]) * factor * static_cast<double>(weight.values[i]);
    return all;
  }

  void check_kda(const Kda& kda, const Kda& truth);
  void check_head_of_kda(const Kda& kda, const Kda& truth, const std::vector<float>& proj);
  void check_mla(const Mla& mla, const Mla& truth, std::size_t layer);
  void check_head_of_mla(const Mla& mla, const Mla& truth, std::size_t layer, std::size_t head,
                         const std::vector<float>& proj, const std::vector<float>& queries,
                         const std::vector<float>& absorbed);

  // Of one row: gates and ups in turns of a tile.
  void activation(gemm::Comparison& found, const float* gate_up, const std::uint16_t* hidden,
                  std::size_t inner, std::size_t row) {
    for (std::size_t i = 0; i < inner; ++i) {
      const std::size_t at = i / gemm::kTileRows * 2 * gemm::kTileRows + i % gemm::kTileRows;
      const auto gate = static_cast<double>(gate_up[at]);
      const auto up = static_cast<double>(gate_up[at + gemm::kTileRows]);
      see(found, bf16(hidden[i]), gemm::situ_exact(gate, up), gemm::situ_bound(gate, up), i, row);
    }
  }

  void check_mlp(const std::string& name, const Mlp& mlp, const Mlp& truth, const Work::Halves& x,
                 const Work::Floats& gate_up, const Work::Halves& hidden, const Work::Floats& y) {
    product(name + ": gate and up", mlp.gate_up, truth.gate_up, x.at[0], gate_up);
    const std::vector<float> given = outputs(mlp.gate_up, gate_up);
    gemm::Comparison found;
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t n = 0; n < hidden.at.size(); ++n)
        activation(found, given.data() + row * mlp.gate_up.rows(), hidden.row(n, row), mlp.down.depth(), row);
    }
    add(name + ": SiTU", found);
    product(name + ": down", mlp.down, truth.down, hidden.at[0], y);
  }

  struct Chosen {
    std::size_t expert = 0;
    std::size_t node = 0;  // whose memory holds rows and outputs
    std::size_t group = 0;
    std::vector<std::size_t> rows;
    std::size_t first = 0;   // slot
    std::size_t number = 0;  // among those that are chosen
    std::size_t of = 0;
  };

  std::vector<Chosen> chosen(std::span<const std::int16_t> ids) const;
  void check_moe(const Moe& moe, const Moe& truth);
  void check_weights(const Moe& moe, std::span<const std::int16_t> ids);

  // Each node that works for a row must have that row's activations.
  void check_rows(const Moe& moe, const std::vector<Chosen>& all);
  void check_experts(const Moe& moe, const Moe& truth, const std::vector<Chosen>& all);

  // Of a group that is spread over the nodes each part lies where it was computed: what is a number there.
  void gather(const Chosen& one, const Work::Floats& from, std::vector<float>& to) const;

  std::size_t computed_on(const Chosen& one, std::size_t row) const;
  void check_sums(const Moe& truth, const std::vector<Chosen>& all, std::span<const std::int16_t> ids);
  void check_head() {
    const std::size_t vectors = (shape_.layers - 1) / shape_.block_layers + 2;
    halves("the head's mix", work_.head_x, shape_.hidden, [&](std::size_t row) {
      const float* const from = work_.residual.row(home_node(row), row);
      Doubles scores(vectors);
      double most = -HUGE_VAL;
      for (std::size_t v = 0; v < vectors; ++v) {
        const Doubles one = normalised(from + v * shape_.hidden, shape_.hidden, truth_.output_mix.norm);
        for (std::size_t i = 0; i < shape_.hidden; ++i)
          scores[v] += one[i] * static_cast<double>(truth_.output_mix.proj.values[i]);
        most = std::max(most, scores[v]);
      }
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - most);
      std::vector<float> mixed(shape_.hidden);
      for (std::size_t i = 0; i < shape_.hidden; ++i) {
        double value = 0;
        for (std::size_t v = 0; v < vectors; ++v)
          value += scores[v] / sum * static_cast<double>(from[v * shape_.hidden + i]);
        mixed[i] = static_cast<float>(value);
      }
      return normalised(mixed.data(), shape_.hidden, truth_.norm);
    });
    product("the head", own_.head, truth_.head, work_.head_x.at[0], work_.logits);
  }

  const Engine& engine_;
  const Model& own_;
  const Model& truth_;
  const Work& work_;
  const Shape& shape_;
  const std::size_t rows_;
  const std::size_t sampled_;
  std::mt19937_64 dice_;
  std::vector<Stage> stages_;
};

}  // namespace k3gate::decode
