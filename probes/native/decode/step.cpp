#include "step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "../gemm/situ.hpp"

namespace k3gate::decode {
namespace {

using gemm::kTileRows;

constexpr std::size_t kTilesFrom = 16;  // rows for which tile products pay

double as_double(std::size_t value) { return static_cast<double>(value); }

std::size_t share(std::size_t all, std::size_t part, std::size_t parts) { return all * part / parts; }

}  // namespace

void Counters::add(const Counters& other) {
  for (std::size_t i = 0; i < kParts; ++i) {
    read[i] += other.read[i];
    written[i] += other.written[i];
    flops[i] += other.flops[i];
  }
  activations += other.activations;
  experts_in += other.experts_in;
  experts_out += other.experts_out;
  choices += other.choices;
  agreed += other.agreed;
  routed += other.routed;
  tied += other.tied;
}

Variants::Variants(const std::string& path) : path_(gemm::Path::kGeneric) {
  bool begun = false;
  for (const gemm::Path one : gemm::paths()) {
    if (gemm::name_of(one) == path) {
      if (gemm::availability(one).presence != gemm::Presence::kOk)
        throw std::invalid_argument(path + " is not on this CPU");
      begun = true;
      path_ = one;
    }
    if (!begun || gemm::availability(one).presence != gemm::Presence::kOk) continue;
    for (const gemm::Variant& variant : gemm::variants()) {
      if (variant.path == one) allowed_.push_back(&variant);
    }
  }
  if (!begun) throw std::invalid_argument("no such path: " + path);
}

const gemm::Variant& Variants::of(gemm::Format format, std::size_t rows) const {
  const gemm::Variant* fallback = nullptr;
  for (const gemm::Variant* const one : allowed_) {
    if (one->format != format) continue;
    const bool tiles = one->path == gemm::Path::kAmxInt8 || one->path == gemm::Path::kAmxBf16;
    if (rows >= kTilesFrom || !tiles) return *one;
    if (fallback == nullptr) fallback = one;
  }
  if (fallback == nullptr) throw std::invalid_argument("no variant for this format");
  return *fallback;
}

Worker::Worker(const Model& model, const Work& work, const Variants& variants, std::size_t thread)
    : model_(model),
      work_(work),
      variants_(variants),
      vectors_(vectors(variants.path())),
      thread_(thread),
      node_(model.threads().node[thread]),
      rank_(thread - model.threads().first[node_]),
      group_(model.groups() == 1 ? 0 : node_),
      group_rank_(model.groups() == 1 ? thread : rank_),
      group_size_(model.groups() == 1 ? model.threads().count() : model.threads().of_node(node_)) {
  const Shape& shape = model.setup().shape;
  const std::size_t rows = model.setup().rows();
  std::size_t widest = 0;
  std::size_t deepest = 0;
  const auto see = [&](const Matrix& matrix) {
    for (const Shard& shard : matrix.shards_of(thread)) widest = std::max(widest, shard.rows());
    deepest = std::max(deepest, matrix.depth());
  };
  const auto see_mlp = [&](const std::optional<Mlp>& mlp) {
    if (!mlp) return;
    see(mlp->gate_up);
    see(mlp->down);
  };
  for (const Layer& layer : model.layers) {
    if (layer.kda) {
      see(layer.kda->proj);
      see(layer.kda->f_b);
      see(layer.kda->out);
    }
    if (layer.mla) {
      for (const Matrix* one :
           {&layer.mla->proj, &layer.mla->q_b, &layer.mla->k_b, &layer.mla->v_b, &layer.mla->out})
        see(*one);
    }
    see_mlp(layer.dense);
    if (layer.moe && model.setup().trunk) {
      see(layer.moe->router);
      see(layer.moe->latent_down);
      see(layer.moe->latent_up);
      see_mlp(layer.moe->shared);
    }
  }
  if (model.setup().trunk) see(model.head);
  widest = std::max({widest, 2 * shape.inner, shape.width});
  deepest = std::max({deepest, shape.width, shape.inner});
  workspace_.reserve(rows, deepest);
  scratch_.resize(rows * widest);
  gathered_.resize(rows * std::max({shape.width, shape.head_dim, shape.cache_rank}));
  floats_.resize(std::max({8 * shape.head_dim, 2 * shape.hidden, 2 * shape.router_rows, 2 * shape.width,
                           shape.query_rank, shape.cached(), rows * shape.cache_rank}) +
                 64);
  cache_block_.resize(16 * shape.cached());
  queries_.resize(shape.heads * (shape.cached() + 16));
  ones_.assign(shape.head_dim, 1.0F);
  offsets_.reserve(2 * shape.inner / kTileRows + shape.width / kTileRows + 2);
  counts_.resize(shape.router_rows);
  slots_.resize(shape.router_rows);
  active_.reserve(shape.router_rows);
  group_of_expert_.resize(shape.router_rows);
  groups_of_row_.resize(rows);
  row_of_slot_.resize(rows * shape.used);
  slot_of_choice_.resize(rows * shape.used);
}

void Worker::prepare(const Run& run) {
  run_ = run;
  rows_ = run.batch->rows;
  counters_ = Counters{};
  const std::size_t most = run.steps * (model_.layers.size() * 64 + 16);
  marks_.seconds.clear();
  marks_.seconds.reserve(most);
  marks_.parts.clear();
  marks_.parts.reserve(most);
  marks_.step_ends.clear();
  marks_.step_ends.reserve(run.steps);
}

void Worker::steps() {
  marks_.start = last_ = now();
  for (std::size_t number = 0; number < run_.steps; ++number) {
    step(number);
    marks_.step_ends.push_back(last_);
  }
}

void Worker::mark(Part part) {
  const double time = now();
  marks_.seconds.push_back(static_cast<float>(time - last_));
  marks_.parts.push_back(part);
  last_ = time;
}

void Worker::meet() {
  run_.barrier->wait(node_);
  mark(Part::kSynchronisation);
}

std::size_t Worker::home_node(std::size_t row) const {
  const Threads& threads = model_.threads();
  return threads.node[threads.home[row % threads.count()]];
}

bool Worker::is_home(std::size_t row) const {
  const Threads& threads = model_.threads();
  return threads.home[row % threads.count()] == thread_;
}

// Counts a product of so many rows with so many rows of weights.
void Worker::weigh(const Matrix& matrix, std::size_t rows, std::size_t weight_rows) {
  const auto part = static_cast<std::size_t>(matrix.part());
  counters_.read[part] += gemm::format_bytes(matrix.format(), weight_rows, matrix.depth());
  counters_.flops[part] += gemm::flops(rows, weight_rows, matrix.depth());
}

// Outputs to rows of `stride`, at `to`.
void Worker::multiply_shard(const Shard& shard, const Matrix& matrix, const std::uint16_t* input,
                            std::size_t rows, float* to, std::size_t stride) {
  const gemm::Variant& variant = variants_.of(matrix.format(), rows);
  float* const direct = rows == 1 ? to : scratch_.data();
  variant.run({&shard.packed, input, direct, rows, &workspace_});
  for (std::size_t row = 0; row < rows && rows > 1; ++row)
    std::memcpy(to + row * stride, direct + row * shard.rows(), shard.rows() * sizeof(float));
  weigh(matrix, rows, shard.rows());
}

// What other threads computed lies on their nodes.
void Worker::fetch(const Matrix& matrix, const Floats& from, std::size_t row, std::size_t first,
                   std::size_t count, float* to) {
  const Threads& threads = model_.threads();
  for (std::size_t n = 0; n < threads.nodes(); ++n) {
    const std::size_t begin = std::max(first, matrix.first_row_of(threads.first[n]));
    const std::size_t end = std::min(first + count, matrix.first_row_of(threads.first[n + 1]));
    if (begin >= end) continue;
    std::memcpy(to + (begin - first), from.row(n, row) + begin, (end - begin) * sizeof(float));
    if (n != node_) counters_.activations += (end - begin) * sizeof(float);
  }
}

void Worker::add_to_sum(const Shard& shard, const Floats& output, std::size_t layer, bool begins) {
  const std::size_t hidden = model_.setup().shape.hidden;
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::size_t home = home_node(row);
    const float* const from = output.row(node_, row) + shard.first_row();
    float* const to = work_.residual.row(home, row) + blocks_at(layer) * hidden + shard.first_row();
    if (begins) {
      std::memcpy(to, from, shard.rows() * sizeof(float));
    } else {
      vectors_.add(from, 1.0F, shard.rows(), to);
    }
    if (home != node_) counters_.activations += shard.rows() * sizeof(float);
  }
}

// A tile of gates and one of ups lie in turns.
void Worker::activate(const Shard& shard, const Floats& gate_up, const Halves& hidden) {
  const std::size_t first = shard.first_row() / 2;
  for (std::size_t row = 0; row < rows_; ++row) {
    gemm::situ(gate_up.row(node_, row) + shard.first_row(), shard.tiles / 2, kTileRows,
               hidden.row(node_, row) + first);
    push(hidden, row, first, shard.rows() / 2);
  }
}

void Worker::step(std::size_t number) {
  const Setup& setup = model_.setup();
  const Shape& shape = setup.shape;
  if (setup.trunk) embed(number);
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const Layer& layer = model_.layers[i];
    if (setup.trunk) {
      const bool begins = i % shape.block_layers == 0;
      const std::size_t vectors = blocks_at(i) + (begins ? 0 : 1);
      mix(layer.attention_mix, layer.attention_norm, vectors, layer.kda ? work_.kda_x : work_.mla_x, false);
      meet();
      layer.kda ? kda(i) : mla(i, number);
      meet();
      mix(layer.mlp_mix, layer.mlp_norm, blocks_at(i) + 1, layer.dense ? work_.dense_x : work_.moe_x, false);
      meet();
    }
    if (layer.dense) {
      dense(i);
    } else if (layer.moe) {
      moe(i, number);
    }
    meet();
  }
  if (setup.trunk) finish();
}

void Worker::embed(std::size_t number) {
  for (std::size_t row = 0; row < rows_; ++row) {
    if (is_home(row))
      model_.embed(static_cast<std::size_t>(run_.tokens[number * rows_ + row]),
                   work_.residual.row(node_, row));
  }
  mark(Part::kMix);
}

void Worker::mix(const Mix& mix, const Vec& norm, std::size_t vectors, const Halves& to, bool last) {
  const std::size_t hidden = model_.setup().shape.hidden;
  const auto width = static_cast<float>(hidden);
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!is_home(row)) continue;
    const float* const from = work_.residual.row(node_, row);
    float* const weights = floats_.data() + hidden;  // there are fewer than the hidden width
    float most = -3e38F;
    for (std::size_t i = 0; i < vectors; ++i) {
      const float* const one = from + i * hidden;
      const float factor = 1 / std::sqrt(vectors_.dot(one, one, hidden) / width + kEpsilon);
      weights[i] = vectors_.dot(mix.both.at[node_], one, hidden) * factor;
      most = std::max(most, weights[i]);
    }
    float sum = 0;
    for (std::size_t i = 0; i < vectors; ++i) sum += weights[i] = std::exp(weights[i] - most);
    float* const mixed = floats_.data();
    for (std::size_t i = 0; i < vectors; ++i) {
      if (i == 0) {
        vectors_.scale(from, weights[0] / sum, hidden, mixed);
      } else {
        vectors_.add(from + i * hidden, weights[i] / sum, hidden, mixed);
      }
    }
    const float factor = 1 / std::sqrt(vectors_.dot(mixed, mixed, hidden) / width + kEpsilon);
    vectors_.normalise(mixed, norm.at[node_], factor, hidden, to.row(node_, row));
    push(to, row, 0, hidden);
    if (last) std::memcpy(work_.hidden.row(0, row), mixed, hidden * sizeof(float));
  }
  mark(Part::kMix);
}

void Worker::kda(std::size_t layer) {
  const Kda& kda = *model_.layers[layer].kda;
  const Shape& shape = model_.setup().shape;
  const std::size_t low = kda.proj.order().row(4, 0);
  multiply(kda.proj, work_.kda_x, work_.kda_proj, [&](const Shard& shard) {
    const std::size_t begin = std::max(shard.first_row(), low);
    const std::size_t end = std::min(shard.first_row() + shard.rows(), low + shape.decay_rank);
    if (begin >= end) return;
    for (std::size_t row = 0; row < rows_; ++row) {
      vectors_.to_bf16(work_.kda_proj.row(node_, row) + begin, end - begin,
                       work_.kda_low.row(node_, row) + begin - low);
      push(work_.kda_low, row, begin - low, end - begin);
    }
  });
  mark(Part::kAttention);
  meet();
  multiply(kda.f_b, work_.kda_low, work_.kda_given, [](const Shard&) {});
  mark(Part::kAttention);
  meet();
  const std::size_t first = model_.first_head[node_];
  const std::size_t units = (model_.first_head[node_ + 1] - first) * run_.batch->sequences;
  const std::size_t threads = model_.threads().of_node(node_);
  for (std::size_t unit = share(units, rank_, threads); unit < share(units, rank_ + 1, threads); ++unit)
    kda_head(kda, layer, first + unit / run_.batch->sequences, unit % run_.batch->sequences);
  mark(Part::kCore);
  meet();
  multiply(kda.out, work_.kda_o, work_.kda_y, [&](const Shard& shard) {
    add_to_sum(shard, work_.kda_y, layer, layer % shape.block_layers == 0);
  });
  mark(Part::kAttention);
}

void Worker::kda_head(const Kda& kda, std::size_t layer, std::size_t head, std::size_t sequence) {
  const Shape& shape = model_.setup().shape;
  const std::size_t dim = shape.head_dim;
  const std::size_t heads = model_.first_head[node_ + 1] - model_.first_head[node_];
  const std::size_t place = sequence * heads + head - model_.first_head[node_];
  const std::size_t past_size = (shape.convolution - 1) * dim;
  float* const state = model_.memory().at<float>(kda.states[node_]) + place * dim * dim;
  float* const past = model_.memory().at<float>(kda.pasts[node_]) + place * 3 * past_size;
  float* const input = floats_.data();
  float* const mixed = input + dim;  // q, k, v
  float* const decay = mixed + 3 * dim;
  float* const output = decay + dim;
  float* const gates = output + dim;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (run_.batch->sequence[row] != sequence) continue;
    if (layer == run_.probed_layer && head == run_.probe->head && row == run_.probe->row) {
      std::copy_n(state, dim * dim, run_.probe->state.begin());
      std::copy_n(past, 3 * past_size, run_.probe->past.begin());
    }
    for (std::size_t i = 0; i < 3; ++i) {
      fetch(kda.proj, work_.kda_proj, row, kda.proj.order().row(i, head * dim), dim, input);
      vectors_.convolve(input, kda.taps[i].at[node_] + head * dim * shape.convolution, shape.convolution, dim,
                        past + i * past_size, mixed + i * dim);
    }
    const float query = 1 / std::sqrt(vectors_.dot(mixed, mixed, dim) + kL2Epsilon);
    vectors_.scale(mixed, query / std::sqrt(static_cast<float>(dim)), dim, mixed);
    const float key = 1 / std::sqrt(vectors_.dot(mixed + dim, mixed + dim, dim) + kL2Epsilon);
    vectors_.scale(mixed + dim, key, dim, mixed + dim);
    fetch(kda.f_b, work_.kda_given, row, head * dim, dim, input);
    vectors_.decay(input, kda.bias.at[node_] + head * dim, kda.steepness.at[node_][head], dim, decay);
    float beta = 0;
    fetch(kda.proj, work_.kda_proj, row, kda.proj.order().row(5, head), 1, &beta);
    vectors_.sigmoid(&beta, 1, &beta);
    vectors_.step_head({dim, state, mixed, mixed + dim, mixed + 2 * dim, decay, beta, output});
    fetch(kda.proj, work_.kda_proj, row, kda.proj.order().row(3, head * dim), dim, gates);
    const float factor =
        1 / std::sqrt(vectors_.dot(output, output, dim) / static_cast<float>(dim) + kEpsilon);
    vectors_.gate(output, kda.norm.at[node_], factor, gates, dim, work_.kda_o.row(node_, row) + head * dim);
    push(work_.kda_o, row, head * dim, dim);
    const double moved = 4 * as_double(dim * dim + 3 * past_size);
    counters_.read[static_cast<std::size_t>(Part::kCore)] += moved;
    counters_.written[static_cast<std::size_t>(Part::kCore)] += moved;
    // Decays and products with key and query, and the change.
    counters_.flops[static_cast<std::size_t>(Part::kCore)] += 7 * as_double(dim * dim);
  }
}

void Worker::dense(std::size_t layer) {
  const Mlp& mlp = *model_.layers[layer].dense;
  multiply(mlp.gate_up, work_.dense_x, work_.dense_gate_up,
           [&](const Shard& shard) { activate(shard, work_.dense_gate_up, work_.dense_hidden); });
  mark(Part::kDense);
  meet();
  multiply(mlp.down, work_.dense_hidden, work_.dense_y,
           [&](const Shard& shard) { add_to_sum(shard, work_.dense_y, layer, false); });
  mark(Part::kDense);
}

void Worker::finish() {
  mix(model_.output_mix, model_.norm, blocks_at(model_.layers.size() - 1) + 1, work_.head_x, true);
  meet();
  multiply(model_.head, work_.head_x, work_.logits, [](const Shard&) {});
  mark(Part::kHead);
  meet();
}

}  // namespace k3gate::decode
