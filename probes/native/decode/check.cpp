#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "../gemm/rounding.hpp"
#include "../gemm/situ.hpp"

namespace k3gate::decode {
namespace {

using Doubles = std::vector<double>;

constexpr double kHalfStep = 0x1p-8;  // of BF16, relative, and some room
constexpr double kFloats = 0x1p-17;   // what some tens of roundings of float32, and its exponentials, take

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double bf16(std::uint16_t bits) { return static_cast<double>(gemm::from_bf16(bits)); }

// Adds one number to a comparison, as those of products do.
void see(gemm::Comparison& found, double got, double wanted, double bound, std::size_t row,
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

  void check_kda(const Kda& kda, const Kda& truth) {
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

  void check_head_of_kda(const Kda& kda, const Kda& truth, const std::vector<float>& proj) {
    const Probe& probe = engine_.probe();
    const std::size_t dim = shape_.head_dim;
    const std::size_t head = probe.head;
    const std::size_t width = shape_.convolution;
    const float* const row = proj.data() + probe.row * kda.proj.rows();
    Doubles mixed[3];
    double sizes[3] = {};
    for (std::size_t i = 0; i < 3; ++i) {
      const float* const input = row + kda.proj.order().row(i, head * dim);
      for (std::size_t c = 0; c < dim; ++c) {
        const float* const taps = truth.taps[i].values.data() + (head * dim + c) * width;
        double sum = static_cast<double>(taps[width - 1]) * static_cast<double>(input[c]);
        for (std::size_t tap = 0; tap + 1 < width; ++tap)
          sum += static_cast<double>(taps[tap]) *
                 static_cast<double>(probe.past[(i * (width - 1) + tap) * dim + c]);
        mixed[i].push_back(sum * sigmoid(sum));
        sizes[i] += mixed[i].back() * mixed[i].back();
      }
    }
    const double query =
        1 / std::sqrt((sizes[0] + static_cast<double>(kL2Epsilon)) * static_cast<double>(dim));
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
      for (std::size_t i = 0; i < dim; ++i) {
        const double term = mixed[1][i] * decay[i] * static_cast<double>(probe.state[i * dim + j]);
        known += term;
        size += std::fabs(term);
      }
      const double change = beta * (mixed[2][j] - known);
      const double room = beta * (std::fabs(mixed[2][j]) + size) * kFloats;
      for (std::size_t i = 0; i < dim; ++i) {
        const double kept = decay[i] * static_cast<double>(probe.state[i * dim + j]);
        const double wanted = kept + mixed[1][i] * change;
        const double bound = kFloats * (std::fabs(kept) + std::fabs(mixed[1][i] * change)) +
                             std::fabs(mixed[1][i]) * room + 1e-30;
        see(found, static_cast<double>(state[i * dim + j]), wanted, bound, i * dim + j, probe.row);
        output[j] += mixed[0][i] * wanted;
        terms[j] += std::fabs(mixed[0][i]) * (std::fabs(wanted) * kFloats + bound);
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
            std::fabs(output[j] * gate) * (kHalfStep + 2 * kFloats) + 2 * terms[j] * std::fabs(gate) + 1e-30,
            j, probe.row);
    }
    add("the output of a head of KDA", out);
  }

  void check_mla(const Mla& mla, const Mla& truth, std::size_t layer) {
    product("MLA's first products", mla.proj, truth.proj, work_.mla_x.at[0], work_.mla_proj);
    const std::vector<float> proj = outputs(mla.proj, work_.mla_proj);
    halves("MLA's query", work_.mla_low, shape_.query_rank, [&](std::size_t row) {
      return normalised(proj.data() + row * mla.proj.rows() + mla.proj.order().row(0, 0), shape_.query_rank,
                        truth.query_norm);
    });
    gemm::Comparison cached;
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* const from = proj.data() + row * mla.proj.rows() + mla.proj.order().row(1, 0);
      Doubles wanted = normalised(from, shape_.cache_rank, truth.cache_norm);
      wanted.insert(wanted.end(), from + shape_.cache_rank, from + shape_.cached());
      const std::uint16_t* const cache =
          engine_.cache_row(layer, engine_.batch().sequence[row], engine_.batch().length[row] - 1);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        see(cached, bf16(cache[i]), wanted[i], std::fabs(wanted[i]) * (kHalfStep + kFloats) + 1e-30, i, row);
    }
    add("rows of MLA's caches", cached);
    product("MLA's second product", mla.q_b, truth.q_b, work_.mla_low.at[0], work_.mla_q);
    const std::vector<float> queries = outputs(mla.q_b, work_.mla_q);
    const std::vector<float> absorbed = outputs(mla.k_b, work_.mla_absorbed);
    for (const std::size_t head :
         gemm::sample_rows(shape_.heads, std::max<std::size_t>(1, sampled_ / 4), dice_()))
      check_head_of_mla(mla, truth, layer, head, proj, queries, absorbed);
    product("MLA's last product", mla.out, truth.out, work_.mla_o.at[0], work_.mla_y);
  }

  void check_head_of_mla(const Mla& mla, const Mla& truth, std::size_t layer, std::size_t head,
                         const std::vector<float>& proj, const std::vector<float>& queries,
                         const std::vector<float>& absorbed) {
    const std::size_t rank = shape_.cache_rank;
    const std::size_t dim = shape_.head_dim;
    gemm::Comparison keys;
    gemm::Comparison contexts;
    gemm::Comparison values;
    const double scale = 1 / std::sqrt(static_cast<double>(shape_.key()));
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* const query = queries.data() + row * mla.q_b.rows() + head * shape_.key();
      std::vector<std::uint16_t> rounded(dim);
      for (std::size_t i = 0; i < dim; ++i) rounded[i] = gemm::to_bf16(query[i]);
      const float* const meets = absorbed.data() + row * mla.k_b.rows() + head * rank;
      const auto kind = engine_.variant(mla.k_b.format(), rows_).activations;
      for (const std::size_t r : gemm::sample_rows(rank, sampled_, dice_())) {
        const gemm::Expected expected =
            gemm::expect_row(truth.k_b.row(head * rank + r), rounded.data(), 1, kind).front();
        see(keys, static_cast<double>(meets[r]), expected.value, expected.bound, r, row);
      }
      const std::size_t length = engine_.batch().length[row];
      const std::size_t sequence = engine_.batch().sequence[row];
      Doubles scores(length);
      double most = -HUGE_VAL;
      double terms = 0;
      for (std::size_t at = 0; at < length; ++at) {
        const std::uint16_t* const cache = engine_.cache_row(layer, sequence, at);
        double sum = 0;
        double size = 0;
        for (std::size_t r = 0; r < shape_.cached(); ++r) {
          const double with = static_cast<double>(r < rank ? meets[r] : query[dim + r - rank]);
          sum += with * bf16(cache[r]);
          size += std::fabs(with * bf16(cache[r]));
        }
        scores[at] = sum * scale;
        most = std::max(most, scores[at]);
        terms = std::max(terms, size * scale);
      }
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - most);
      Doubles wanted(rank);
      Doubles sizes(rank);
      for (std::size_t at = 0; at < length; ++at) {
        const std::uint16_t* const cache = engine_.cache_row(layer, sequence, at);
        for (std::size_t r = 0; r < rank; ++r) {
          wanted[r] += scores[at] / sum * bf16(cache[r]);
          sizes[r] += scores[at] / sum * std::fabs(bf16(cache[r]));
        }
      }
      // A head's shard of W_v may be cut among threads, which lie on one node each.
      const Shard* shard = nullptr;
      std::size_t node = 0;
      for (std::size_t thread = 0; thread < own_.threads().count() && shard == nullptr; ++thread) {
        for (const Shard& one : mla.v_b.shards_of(thread)) {
          if (one.first_row() > head * dim || one.first_row() + one.rows() <= head * dim) continue;
          shard = &one;
          node = own_.threads().node[thread];
        }
      }
      const std::uint16_t* const context = work_.mla_context.row(node, row) + head * rank;
      for (std::size_t r = 0; r < rank; ++r)
        see(contexts, bf16(context[r]), wanted[r],
            std::fabs(wanted[r]) * kHalfStep + sizes[r] * (4 * kFloats + 4 * 0x1p-20 * terms) + 1e-30, r,
            row);
      const auto value_kind = engine_.variant(mla.v_b.format(), rows_).activations;
      const std::size_t end = std::min(shard->first_row() + shard->rows(), (head + 1) * dim);
      for (std::size_t i = head * dim; i < end; ++i) {
        const gemm::Expected expected = gemm::expect_row(truth.v_b.row(i), context, 1, value_kind).front();
        const double gate =
            sigmoid(static_cast<double>(proj[row * mla.proj.rows() + mla.proj.order().row(2, i)]));
        for (const auto* at : work_.mla_o.at)
          see(values, bf16(at[row * work_.mla_o.stride + i]), expected.value * gate,
              expected.bound * gate + std::fabs(expected.value * gate) * (kHalfStep + kFloats) + 1e-30, i,
              row);
      }
    }
    add("queries absorbed by a head of MLA", keys);
    add("what a head of MLA finds in its cache", contexts);
    add("the output of a head of MLA", values);
  }

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

  std::vector<Chosen> chosen(std::span<const std::int16_t> ids) const {
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

  void check_moe(const Moe& moe, const Moe& truth) {
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

  void check_weights(const Moe& moe, std::span<const std::int16_t> ids) {
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

  // Each node that works for a row must have that row's activations.
  void check_rows(const Moe& moe, const std::vector<Chosen>& all) {
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
            const double wanted = latent.empty()
                                      ? bf16(home[i])
                                      : static_cast<double>(latent[row * moe.latent_down.rows() + i]);
            see(found, bf16(got[i]), wanted, std::fabs(wanted) * kHalfStep + 1e-30, i, row);
          }
        }
      }
    }
    add("rows of experts", found);
  }

  void check_experts(const Moe& moe, const Moe& truth, const std::vector<Chosen>& all) {
    gemm::Comparison up;
    gemm::Comparison middle;
    gemm::Comparison down;
    for (const std::size_t i :
         gemm::sample_rows(all.size(), std::max<std::size_t>(1, sampled_ / 2), dice_())) {
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

  // Of a group that is spread over the nodes each part lies where it was computed: what is a number there.
  void gather(const Chosen& one, const Work::Floats& from, std::vector<float>& to) const {
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

  std::size_t computed_on(const Chosen& one, std::size_t row) const {
    const std::size_t units = (2 * shape_.inner / gemm::kTileRows + 3) / 4;
    const std::size_t unit = one.number * units + row / gemm::kTileRows / 4;
    const std::size_t all = one.of * units;
    const std::size_t threads = own_.threads().count();
    std::size_t thread = 0;
    while (all * (thread + 1) / threads <= unit) ++thread;
    return own_.threads().node[thread];
  }

  void check_sums(const Moe& truth, const std::vector<Chosen>& all, std::span<const std::int16_t> ids) {
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
          see(found, static_cast<double>(work_.hidden.row(0, row)[i]), total[i], sizes[i] * kFloats + 1e-30,
              i, row);
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

}  // namespace

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
