#include "model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "../gemm/gemm.hpp"
#include "../gemm/rounding.hpp"

namespace k3gate::decode {
namespace {

using gemm::Format;
using gemm::kGroup;
using gemm::kTileRows;
using gemm::scale_bytes;
using gemm::value_bytes;

constexpr std::size_t kStreams = 4;  // tiles that kernels read at once
constexpr std::size_t kStoredQ8 = gemm::kStoredGroup;

std::shared_ptr<const Order> share(Order order) { return std::make_shared<const Order>(std::move(order)); }

float half(const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float size =
      std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024 + fraction), std::max(exponent, 1) - 25);
  return bits >> 15 == 0 ? size : -size;
}

// The k-th number of a row as it is stored.
float stored(Format format, const std::byte* values, const std::byte* scales, std::size_t k) {
  switch (format) {
    case Format::kMxfp4: {
      const auto pair = std::to_integer<unsigned>(values[k / 2]);
      const unsigned code = k % 2 == 0 ? pair & 15U : pair >> 4U;
      return std::ldexp(static_cast<float>(gemm::kDoubledCodes[code]),
                        std::to_integer<int>(scales[k / kGroup]) - 128);
    }
    case Format::kBf16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, values + 2 * k, sizeof bits);
      return gemm::from_bf16(bits);
    }
    default:
      break;
  }
  const std::byte* const block = values + k / kGroup * kStoredQ8;
  return half(block) * static_cast<float>(static_cast<std::int8_t>(block[2 + k % kGroup]));
}

}  // namespace

Threads::Threads(const Setup& setup) {
  const std::size_t working = setup.placement == Placement::kSingle ? 1 : setup.nodes.size();
  first.push_back(0);
  for (std::size_t n = 0; n < working; ++n) {
    for (const int cpu : setup.cpus[n]) {
      node.push_back(n);
      cpus.push_back(cpu);
    }
    first.push_back(node.size());
  }
  for (std::size_t rank = 0; home.size() < node.size(); ++rank) {
    for (std::size_t n = 0; n < working; ++n) {
      if (rank < of_node(n)) home.push_back(first[n] + rank);
    }
  }
}

Model::Model(const Setup& setup)
    : setup_(setup),
      threads_(setup),
      memory_(threads_.nodes()),
      groups_(setup.placement == Placement::kInterleaved ? 1 : threads_.nodes()) {
  check(setup);
  const Shape& shape = setup.shape;
  const std::size_t count = threads_.count();
  if (count == 0) throw std::invalid_argument("a miniature needs a CPU");
  for (std::size_t t = 0; t < count; ++t)
    pools_.push_back(setup.placement == Placement::kInterleaved ? memory_.interleaved() : threads_.node[t]);
  for (std::size_t n = 0; n <= threads_.nodes(); ++n)
    first_head.push_back(threads_.first[n] * shape.heads / count);
  const std::size_t runs = (setup.context + setup.room + setup.rows() + kCacheRun - 1) / kCacheRun;
  cache_rows = (runs + threads_.nodes() - 1) / threads_.nodes() * kCacheRun;

  const std::size_t across = shape.across();
  orders_.kda_proj = share(Order::turns({across, across, across, across, shape.decay_rank, shape.heads}, 4,
                                        shape.head_dim / kTileRows));
  orders_.across = share(Order::plain({across}));
  orders_.hidden = share(Order::plain({shape.hidden}));
  orders_.mla_proj = share(Order::plain({shape.query_rank, shape.cached(), across}));
  orders_.q_b = share(Order::plain({shape.heads * shape.key()}));
  orders_.k_b = share(Order::plain({shape.heads * shape.cache_rank}));
  orders_.v_b = orders_.across;
  orders_.router = share(Order::plain({shape.router_rows}));
  orders_.width = share(Order::plain({shape.width}));
  orders_.shared = share(Order::turns({shape.shared * shape.inner, shape.shared * shape.inner}, 2, 1));
  orders_.dense = share(Order::turns({shape.dense_inner, shape.dense_inner}, 2, 1));
  orders_.expert = share(Order::turns({shape.inner, shape.inner}, 2, 1));
  orders_.vocabulary = share(Order::plain({shape.vocabulary}));

  layers.resize(shape.layers);
  for (std::size_t i = 0; i < shape.layers; ++i) {
    Layer& layer = layers[i];
    if (setup.trunk) {
      layer.attention_norm = take_vec(shape.hidden);
      layer.mlp_norm = take_vec(shape.hidden);
      layer.attention_mix = take_mix();
      layer.mlp_mix = take_mix();
      if (shape.mla[i]) {
        layer.mla = take_mla();
      } else {
        layer.kda = take_kda();
      }
    }
    if (!shape.dense(i)) {
      layer.moe = take_moe();
    } else if (setup.trunk) {
      layer.dense = take_mlp(shape.dense_inner, Part::kDense);
    }
  }
  if (setup.trunk) {
    output_mix = take_mix();
    norm = take_vec(shape.hidden);
    head = take(setup.format, shape.hidden, orders_.vocabulary, Part::kHead, 1);
    embedding_row_ = value_bytes(setup.format, 1, shape.hidden) + scale_bytes(setup.format, 1, shape.hidden);
    embedding_ = memory_.take(pools_[0], Part::kEmbedding, shape.vocabulary * embedding_row_);
  }
}

Vec Model::take_vec(std::size_t count) {
  Vec vec;
  vec.count = count;
  vec.values.assign(count, 0.0F);
  for (std::size_t n = 0; n < threads_.nodes(); ++n)
    vec.places.push_back(memory_.take(n, Part::kMix, count * sizeof(float)));
  return vec;
}

Mix Model::take_mix() {
  const std::size_t hidden = setup_.shape.hidden;
  return {take_vec(hidden), take_vec(hidden), take_vec(hidden)};
}

Matrix Model::take(Format format, std::size_t depth, const std::shared_ptr<const Order>& order, Part part,
                   std::size_t unit, std::size_t cut) {
  Matrix matrix(format, depth, order, part, next_key_++ + setup_.seed * 1'000'003);
  // Whole panels where each thread has several, else even shares.
  const std::size_t fitting = order->tiles() >= 8 * kStreams * pools_.size() ? kStreams : unit;
  matrix.shard(memory_, pools_, fitting, cut);
  return matrix;
}

Matrix Model::take_whole(std::size_t depth, const std::shared_ptr<const Order>& order, std::size_t pool,
                         std::uint64_t key) {
  Matrix matrix(Format::kMxfp4, depth, order, Part::kRouted, key);
  matrix.shard(memory_, {pool}, order->tiles(), 0);
  return matrix;
}

Mlp Model::take_mlp(std::size_t inner, Part part) {
  Mlp mlp;
  mlp.gate_up = take(setup_.format, setup_.shape.hidden,
                     part == Part::kDense ? orders_.dense : orders_.shared, part, 2);
  mlp.down = take(setup_.format, inner, orders_.hidden, part, 1);
  return mlp;
}

Kda Model::take_kda() {
  const Shape& shape = setup_.shape;
  const std::size_t across = shape.across();
  Kda kda;
  kda.proj = take(setup_.format, shape.hidden, orders_.kda_proj, Part::kAttention, 1);
  kda.f_b = take(setup_.format, shape.decay_rank, orders_.across, Part::kAttention, 1);
  kda.out = take(setup_.format, across, orders_.hidden, Part::kAttention, 1);
  for (Vec& taps : kda.taps) taps = take_vec(across * shape.convolution);
  kda.bias = take_vec(across);
  kda.a_log = take_vec(std::max(shape.heads, shape.head_dim));
  kda.steepness = take_vec(shape.heads);
  kda.norm = take_vec(shape.head_dim);
  for (std::size_t n = 0; n < threads_.nodes(); ++n) {
    const std::size_t heads = (first_head[n + 1] - first_head[n]) * setup_.batch;
    kda.states.push_back(
        memory_.take(n, Part::kState, heads * shape.head_dim * shape.head_dim * sizeof(float)));
    kda.pasts.push_back(
        memory_.take(n, Part::kState, heads * 3 * (shape.convolution - 1) * shape.head_dim * sizeof(float)));
  }
  return kda;
}

Mla Model::take_mla() {
  const Shape& shape = setup_.shape;
  Mla mla;
  mla.proj = take(setup_.format, shape.hidden, orders_.mla_proj, Part::kAttention, 1);
  mla.query_norm = take_vec(shape.query_rank);
  mla.cache_norm = take_vec(shape.cache_rank);
  mla.q_b = take(setup_.format, shape.query_rank, orders_.q_b, Part::kAttention, 1);
  mla.k_b = take(setup_.format, shape.head_dim, orders_.k_b, Part::kCore, 1, shape.cache_rank / kTileRows);
  mla.v_b = take(setup_.format, shape.cache_rank, orders_.v_b, Part::kCore, 1, shape.head_dim / kTileRows);
  mla.out = take(setup_.format, shape.across(), orders_.hidden, Part::kAttention, 1);
  for (std::size_t n = 0; n < threads_.nodes(); ++n)
    mla.caches.push_back(
        memory_.take(n, Part::kCache, setup_.batch * cache_rows * shape.cached() * sizeof(std::uint16_t)));
  return mla;
}

Moe Model::take_moe() {
  const Shape& shape = setup_.shape;
  Moe moe;
  if (setup_.trunk) {
    moe.router = take(Format::kBf16, shape.hidden, orders_.router, Part::kRouter, 1);
    moe.bias = take_vec(shape.router_rows);
    moe.norm = take_vec(shape.width);
    moe.latent_down = take(setup_.format, shape.hidden, orders_.width, Part::kLatent, 1);
    moe.latent_up = take(setup_.format, shape.width, orders_.hidden, Part::kLatent, 1);
    if (shape.shared > 0) moe.shared = take_mlp(shape.shared * shape.inner, Part::kShared);
  }
  moe.experts.resize(groups_);
  for (std::size_t expert = 0; expert < shape.experts; ++expert) {
    const std::uint64_t key = next_key_ + setup_.seed * 1'000'003;
    next_key_ += 2;
    for (std::size_t group = 0; group < groups_; ++group) {
      std::optional<Mlp>& place = moe.experts[group].emplace_back();
      if (setup_.placement == Placement::kOwner && expert % groups_ != group) continue;
      const std::size_t pool = setup_.placement == Placement::kInterleaved ? memory_.interleaved() : group;
      place = Mlp{take_whole(shape.width, orders_.expert, pool, key),
                  take_whole(shape.inner, orders_.width, pool, key + 1)};
    }
  }
  return moe;
}

template <class Do>
void Model::each_matrix(const Do& act) {
  const auto mlp = [&act](std::optional<Mlp>& one, bool whole) {
    if (!one) return;
    act(one->gate_up, whole);
    act(one->down, whole);
  };
  for (Layer& layer : layers) {
    if (layer.kda) {
      for (Matrix* each : {&layer.kda->proj, &layer.kda->f_b, &layer.kda->out}) act(*each, false);
    }
    if (layer.mla) {
      for (Matrix* each :
           {&layer.mla->proj, &layer.mla->q_b, &layer.mla->k_b, &layer.mla->v_b, &layer.mla->out})
        act(*each, false);
    }
    mlp(layer.dense, false);
    if (layer.moe) {
      if (setup_.trunk) {
        for (Matrix* each : {&layer.moe->router, &layer.moe->latent_down, &layer.moe->latent_up})
          act(*each, false);
      }
      mlp(layer.moe->shared, false);
      for (auto& group : layer.moe->experts) {
        for (auto& expert : group) mlp(expert, true);
      }
    }
  }
  if (setup_.trunk) act(head, false);
}

template <class Do>
void Model::each_vec(const Do& act) {
  const auto mix = [&act](Mix& one, float deviation) {
    act(one.norm, 1.0F, 0.1F);
    act(one.proj, 0.0F, deviation);
    act(one.both, 0.0F, 0.0F);
  };
  if (!setup_.trunk) return;
  const float small = 1 / std::sqrt(static_cast<float>(setup_.shape.hidden));
  for (Layer& layer : layers) {
    act(layer.attention_norm, 1.0F, 0.1F);
    act(layer.mlp_norm, 1.0F, 0.1F);
    mix(layer.attention_mix, small);
    mix(layer.mlp_mix, small);
    if (layer.kda) {
      const float tap = 1 / std::sqrt(static_cast<float>(setup_.shape.convolution));
      for (Vec& taps : layer.kda->taps) act(taps, 0.0F, tap);
      act(layer.kda->bias, -2.0F, 1.5F);
      act(layer.kda->a_log, 0.5F, 0.5F);
      act(layer.kda->steepness, 0.0F, 0.0F);
      act(layer.kda->norm, 1.0F, 0.1F);
    }
    if (layer.mla) {
      act(layer.mla->query_norm, 1.0F, 0.1F);
      act(layer.mla->cache_norm, 1.0F, 0.1F);
    }
    if (layer.moe) {
      act(layer.moe->bias, 0.0F, 0.05F);
      act(layer.moe->norm, 1.0F, 0.1F);
    }
  }
  mix(output_mix, small);
  act(norm, 1.0F, 0.1F);
}

void Model::allocate() {
  memory_.allocate(setup_);
  each_matrix([this](Matrix& matrix, bool) { matrix.attach(memory_); });
  each_vec([this](Vec& vec, float, float) {
    for (const Place& place : vec.places) vec.at.push_back(memory_.at<float>(place));
  });
}

void Model::set(Vec& vec, std::vector<float> values) const {
  vec.values = std::move(values);
  for (float* const at : vec.at) std::memcpy(at, vec.values.data(), vec.count * sizeof(float));
}

void Model::set_mix(Mix& mix) const {
  std::vector<float> both(mix.norm.count);
  for (std::size_t i = 0; i < both.size(); ++i) both[i] = mix.norm.values[i] * mix.proj.values[i];
  set(mix.both, std::move(both));
}

void Model::set_steepness(Kda& kda) const {
  std::vector<float> steepness(setup_.shape.heads);
  for (std::size_t h = 0; h < steepness.size(); ++h)
    steepness[h] = static_cast<float>(std::exp(static_cast<double>(kda.a_log.values[h])));
  set(kda.steepness, std::move(steepness));
}

void Model::prepare_fill() {
  std::mt19937_64 dice(setup_.seed);
  each_vec([&](Vec& vec, float mean, float deviation) {
    std::vector<float> values(vec.count, mean);
    if (deviation > 0) {
      std::normal_distribution<float> normal(mean, deviation);
      for (float& value : values) value = gemm::from_bf16(gemm::to_bf16(normal(dice)));
    }
    set(vec, std::move(values));
  });
  for (Layer& layer : layers) {
    if (!setup_.trunk) break;
    set_mix(layer.attention_mix);
    set_mix(layer.mlp_mix);
    if (layer.kda) set_steepness(*layer.kda);
  }
  if (setup_.trunk) set_mix(output_mix);
  each_matrix([&](Matrix& matrix, bool) {
    for (const auto& one : fillers_) {
      if (one->fits(matrix.format(), matrix.depth())) return;
    }
    fillers_.push_back(
        std::make_unique<Filler>(matrix.format(), matrix.depth(), setup_.seed + matrix.depth()));
  });
  filled_ = true;
}

void Model::fill(std::size_t thread) const {
  const auto filler_of = [this](const Matrix& matrix) -> const Filler& {
    return **std::find_if(fillers_.begin(), fillers_.end(),
                          [&](const auto& one) { return one->fits(matrix.format(), matrix.depth()); });
  };
  const std::size_t node = threads_.node[thread];
  std::size_t whole = 0;
  const_cast<Model*>(this)->each_matrix([&](Matrix& matrix, bool undivided) {
    if (!undivided) {
      matrix.fill(thread, filler_of(matrix));
      return;
    }
    // Experts by turns, by threads of their node.
    const std::size_t pool = matrix.shards().front().place.pool;
    if (pool == memory_.interleaved()) {
      if (whole++ % threads_.count() == thread) matrix.fill(0, filler_of(matrix));
    } else if (pool == node) {
      if (whole++ % threads_.of_node(node) == thread - threads_.first[node])
        matrix.fill(0, filler_of(matrix));
    }
  });
  if (!setup_.trunk) return;
  const std::size_t vocabulary = setup_.shape.vocabulary;
  for (std::size_t token = thread * vocabulary / threads_.count();
       token < (thread + 1) * vocabulary / threads_.count(); ++token) {
    std::mt19937_64 dice(setup_.seed * 77 + token);
    auto* const row = memory_.at(embedding_) + token * embedding_row_;
    const std::size_t hidden = setup_.shape.hidden;
    if (setup_.format == Format::kBf16) {
      std::normal_distribution<float> normal;
      for (std::size_t k = 0; k < hidden; ++k) {
        // Sums of four bytes are near enough to normal numbers, and quick.
        const std::uint64_t word = dice();
        int sum = 0;
        for (int byte = 0; byte < 8; ++byte) sum += static_cast<int>(word >> 8 * byte & 255U);
        const std::uint16_t bits = gemm::to_bf16(static_cast<float>(sum - 1020) / 209.0F);
        std::memcpy(row + 2 * k, &bits, sizeof bits);
      }
      continue;
    }
    for (std::size_t k = 0; k < embedding_row_; ++k) row[k] = static_cast<std::byte>(dice());
    if (setup_.format == Format::kMxfp4) {
      for (std::size_t k = 0; k < hidden / kGroup; ++k) row[hidden / 2 + k] = std::byte{125};
    } else {
      const std::uint16_t scale = 0x2000;  // 2^-7
      for (std::size_t k = 0; k < hidden / kGroup; ++k)
        std::memcpy(row + k * kStoredQ8, &scale, sizeof scale);
    }
  }
}

void Model::embed(std::size_t token, float* to) const {
  const std::byte* const row = memory_.at(embedding_) + token * embedding_row_;
  const std::size_t hidden = setup_.shape.hidden;
  const std::byte* const scales = row + value_bytes(setup_.format, 1, hidden);
  for (std::size_t k = 0; k < hidden; ++k) to[k] = stored(setup_.format, row, scales, k);
}

// Calls visit(Found) for each tensor; it returns whether to go on.
template <class Visit>
void Model::visit(const Visit& visit) const {
  auto& self = const_cast<Model&>(*this);
  const Shape& shape = setup_.shape;
  const std::string trunk(gemm::name_of(setup_.format));
  bool going = true;
  const auto show = [&](Found found) { going = going && visit(found); };
  const auto matrix = [&](const std::string& name, Matrix& one, std::size_t piece) {
    Found found;
    found.pieces = {{&one, piece}};
    found.info = {name, std::string(gemm::name_of(one.format())), one.order().piece_rows(piece), one.depth()};
    show(std::move(found));
  };
  const auto vec = [&](const std::string& name, Vec& one, Mix* mix, Kda* kda) {
    Found found;
    found.vec = &one;
    found.mix = mix;
    found.kda = kda;
    found.info = {name, "f32", 1, one.count};
    show(std::move(found));
  };
  const auto mix = [&](const std::string& name, Mix& one) {
    vec(name + "_norm.weight", one.norm, &one, nullptr);
    vec(name + "_proj.weight", one.proj, &one, nullptr);
  };
  const auto mlp = [&](const std::string& at, Mlp& one) {
    matrix(at + "gate_proj.weight", one.gate_up, 0);
    matrix(at + "up_proj.weight", one.gate_up, 1);
    matrix(at + "down_proj.weight", one.down, 0);
  };
  if (setup_.trunk) {
    Found found;
    found.embedding = true;
    found.info = {"model.embed_tokens.weight", trunk, shape.vocabulary, shape.hidden};
    show(std::move(found));
  }
  for (std::size_t i = 0; i < shape.layers && going; ++i) {
    Layer& layer = self.layers[i];
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const std::string attention = at + "self_attn.";
    if (setup_.trunk) {
      vec(at + "input_layernorm.weight", layer.attention_norm, nullptr, nullptr);
      vec(at + "post_attention_layernorm.weight", layer.mlp_norm, nullptr, nullptr);
      mix(at + "self_attention_res", layer.attention_mix);
      mix(at + "mlp_res", layer.mlp_mix);
    }
    if (layer.kda) {
      Kda& kda = *layer.kda;
      const char* const names[] = {"q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj"};
      for (std::size_t piece = 0; piece < 6; ++piece)
        matrix(attention + names[piece] + ".weight", kda.proj, piece);
      matrix(attention + "f_b_proj.weight", kda.f_b, 0);
      matrix(attention + "o_proj.weight", kda.out, 0);
      for (std::size_t tap = 0; tap < 3; ++tap)
        vec(attention + std::string(1, "qkv"[tap]) + "_conv1d.weight", kda.taps[tap], nullptr, nullptr);
      vec(attention + "dt_bias", kda.bias, nullptr, nullptr);
      vec(attention + "A_log", kda.a_log, nullptr, &kda);
      vec(attention + "o_norm.weight", kda.norm, nullptr, nullptr);
    }
    if (layer.mla) {
      Mla& mla = *layer.mla;
      matrix(attention + "q_a_proj.weight", mla.proj, 0);
      matrix(attention + "kv_a_proj_with_mqa.weight", mla.proj, 1);
      matrix(attention + "g_proj.weight", mla.proj, 2);
      vec(attention + "q_a_layernorm.weight", mla.query_norm, nullptr, nullptr);
      vec(attention + "kv_a_layernorm.weight", mla.cache_norm, nullptr, nullptr);
      matrix(attention + "q_b_proj.weight", mla.q_b, 0);
      matrix(attention + "o_proj.weight", mla.out, 0);
      Found found;
      found.key_value = &mla;
      found.info = {attention + "kv_b_proj.weight", trunk, 2 * shape.across(), shape.cache_rank};
      show(std::move(found));
    }
    if (layer.dense) mlp(at + "mlp.", *layer.dense);
    if (!layer.moe) continue;
    Moe& moe = *layer.moe;
    const std::string block = at + "block_sparse_moe.";
    if (setup_.trunk) {
      matrix(block + "gate.weight", moe.router, 0);
      vec(block + "gate.e_score_correction_bias", moe.bias, nullptr, nullptr);
      matrix(block + "routed_expert_down_proj.weight", moe.latent_down, 0);
      matrix(block + "routed_expert_up_proj.weight", moe.latent_up, 0);
      vec(block + "routed_expert_norm.weight", moe.norm, nullptr, nullptr);
      if (moe.shared) mlp(block + "shared_experts.", *moe.shared);
    }
    for (std::size_t expert = 0; expert < shape.experts && going; ++expert) {
      const char* const names[] = {"w1", "w3", "w2"};
      for (std::size_t part = 0; part < 3; ++part) {
        Found found;
        for (auto& group : moe.experts) {
          if (!group[expert]) continue;
          Matrix& one = part == 2 ? group[expert]->down : group[expert]->gate_up;
          found.pieces.push_back({&one, part == 1 ? 1U : 0U});
        }
        const Matrix& one = *found.pieces[0].matrix;
        found.info = {block + "experts." + std::to_string(expert) + "." + names[part] + ".weight", "mxfp4",
                      part == 2 ? shape.width : shape.inner, one.depth()};
        show(std::move(found));
      }
    }
  }
  if (setup_.trunk) {
    vec("model.norm.weight", self.norm, nullptr, nullptr);
    mix("model.output_attn_res", self.output_mix);
    matrix("lm_head.weight", self.head, 0);
  }
}

std::vector<TensorInfo> Model::tensors() const {
  std::vector<TensorInfo> all;
  visit([&all](const Found& found) {
    all.push_back(found.info);
    return true;
  });
  return all;
}

std::optional<Model::Found> Model::find(const std::string& name) const {
  std::optional<Found> wanted;
  visit([&](const Found& found) {
    if (found.info.name == name) wanted = found;
    return !wanted;
  });
  return wanted;
}

std::string Model::missing() const {
  std::string first;
  if (filled_) return first;
  visit([&](const Found& found) {
    if (std::find(loaded_.begin(), loaded_.end(), found.info.name) == loaded_.end()) first = found.info.name;
    return first.empty();
  });
  return first;
}

void Model::load(const std::string& name, const std::string& format, const std::byte* data, std::size_t bytes,
                 const std::byte* scales, std::size_t scale_size) {
  const std::optional<Found> found = find(name);
  if (!found) throw std::invalid_argument("no tensor " + name + " in this shape");
  const TensorInfo& info = found->info;
  const std::size_t count = info.rows * info.depth;
  const auto wrong = [&](std::size_t wanted, std::size_t wanted_scales) {
    if (bytes != wanted || scale_size != wanted_scales)
      throw std::invalid_argument(name + " takes " + std::to_string(wanted) + " bytes and " +
                                  std::to_string(wanted_scales) + " of scales");
  };
  // Float32 that stands for BF16, or the other way round.
  std::vector<std::uint16_t> halves;
  if (info.format == "f32" || (info.format == "bf16" && format == "f32")) {
    if (format != "f32" && format != "bf16")
      throw std::invalid_argument(name + " is stored as float32 or bf16");
    wrong(count * (format == "f32" ? 4 : 2), 0);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (format == "f32") {
        std::memcpy(&values[i], data + 4 * i, 4);
      } else {
        values[i] = stored(Format::kBf16, data, nullptr, i);
      }
    }
    if (found->vec != nullptr) {
      set(*found->vec, std::move(values));
      if (found->mix != nullptr) set_mix(*found->mix);
      if (found->kda != nullptr) set_steepness(*found->kda);
      loaded_.push_back(name);
      return;
    }
    for (const float value : values) {
      halves.push_back(gemm::to_bf16(value));
      if (gemm::from_bf16(halves.back()) != value && value == value)
        throw std::invalid_argument(name + " has numbers that are no bf16");
    }
    data = reinterpret_cast<const std::byte*>(halves.data());
  } else {
    if (format != info.format) throw std::invalid_argument(name + " is stored as " + info.format);
    const Format kind = found->pieces.empty() ? setup_.format : found->pieces[0].matrix->format();
    wrong(value_bytes(kind, info.rows, info.depth), scale_bytes(kind, info.rows, info.depth));
  }
  const Format kind = found->pieces.empty() ? setup_.format : found->pieces[0].matrix->format();
  const gemm::Source source{kind, info.rows, info.depth, data, scales};
  if (found->embedding) {
    load_embedding(source);
  } else if (found->key_value != nullptr) {
    load_key_value(*found->key_value, source);
  } else {
    for (const Piece& piece : found->pieces) piece.matrix->load(piece.piece, source);
  }
  loaded_.push_back(name);
}

void Model::load_embedding(const gemm::Source& source) {
  const std::size_t values = value_bytes(source.format, 1, source.depth);
  const std::size_t scales = scale_bytes(source.format, 1, source.depth);
  for (std::size_t row = 0; row < source.rows; ++row) {
    std::byte* const to = memory_.at(embedding_) + row * embedding_row_;
    std::memcpy(to, source.values + row * values, values);
    if (scales > 0) std::memcpy(to + values, source.scales + row * scales, scales);
  }
}

// Keys are multiplied transposed, so scales must be of square blocks; released weights are BF16 and have
// none.
void Model::load_key_value(Mla& mla, const gemm::Source& source) {
  const Shape& shape = setup_.shape;
  const std::size_t dim = shape.head_dim;
  const std::size_t rank = shape.cache_rank;
  const Format format = source.format;
  const std::size_t row_values = value_bytes(format, 1, rank);
  const std::size_t row_scales = scale_bytes(format, 1, rank);
  std::vector<std::byte> keys(value_bytes(format, shape.heads * rank, dim));
  std::vector<std::byte> key_scales(scale_bytes(format, shape.heads * rank, dim));
  std::vector<std::byte> values(value_bytes(format, shape.across(), rank));
  std::vector<std::byte> value_scales(scale_bytes(format, shape.across(), rank));
  const auto square = [](bool holds) {
    if (!holds)
      throw std::invalid_argument(
          "rows of one block of kv_b_proj have scales of their own: it cannot be transposed");
  };
  for (std::size_t number = 0; number < shape.heads; ++number) {
    for (std::size_t i = 0; i < dim; ++i) {
      const std::size_t from = number * 2 * dim + i;
      const std::byte* const row = source.values + from * row_values;
      const std::byte* const first_row = source.values + (from - i % kGroup) * row_values;
      for (std::size_t r = 0; r < rank; ++r) {
        const std::size_t to = (number * rank + r) * dim + i;  // the number in order
        if (format == Format::kBf16) {
          std::memcpy(keys.data() + 2 * to, row + 2 * r, 2);
        } else if (format == Format::kMxfp4) {
          const auto pair = std::to_integer<unsigned>(row[r / 2]);
          const unsigned code = r % 2 == 0 ? pair & 15U : pair >> 4U;
          keys[to / 2] |= static_cast<std::byte>(to % 2 == 0 ? code : code << 4U);
          const std::byte scale = source.scales[from * row_scales + r / kGroup];
          square(scale == source.scales[(from - i % kGroup) * row_scales + r / kGroup]);
          key_scales[to / kGroup] = scale;
        } else {
          const std::byte* const block = row + r / kGroup * kStoredQ8;
          square(std::memcmp(block, first_row + r / kGroup * kStoredQ8, 2) == 0);
          std::byte* const made = keys.data() + to / kGroup * kStoredQ8;
          std::memcpy(made, block, 2);
          made[2 + to % kGroup] = block[2 + r % kGroup];
        }
      }
    }
    const std::size_t from = number * 2 * dim + dim;
    std::memcpy(values.data() + number * dim * row_values, source.values + from * row_values,
                dim * row_values);
    if (row_scales > 0)
      std::memcpy(value_scales.data() + number * dim * row_scales, source.scales + from * row_scales,
                  dim * row_scales);
  }
  mla.k_b.load(0, {format, shape.heads * rank, dim, keys.data(), key_scales.data()});
  mla.v_b.load(0, {format, shape.across(), rank, values.data(), value_scales.data()});
}

std::vector<float> Model::weights(const std::string& name) const {
  const std::optional<Found> found = find(name);
  if (!found) throw std::invalid_argument("no tensor " + name + " in this shape");
  if (found->vec != nullptr) return found->vec->values;
  const TensorInfo& info = found->info;
  std::vector<float> all(info.rows * info.depth);
  const auto put = [&](std::size_t row, const std::vector<double>& values) {
    for (std::size_t k = 0; k < values.size(); ++k) all[row * info.depth + k] = static_cast<float>(values[k]);
  };
  if (found->embedding) {
    for (std::size_t row = 0; row < info.rows; ++row) embed(row, all.data() + row * info.depth);
  } else if (found->key_value != nullptr) {
    const std::size_t dim = setup_.shape.head_dim;
    for (std::size_t number = 0; number < setup_.shape.heads; ++number) {
      for (std::size_t r = 0; r < info.depth; ++r) {
        const std::vector<double> column = found->key_value->k_b.row(number * info.depth + r);
        for (std::size_t i = 0; i < dim; ++i)
          all[(number * 2 * dim + i) * info.depth + r] = static_cast<float>(column[i]);
      }
      for (std::size_t i = 0; i < dim; ++i)
        put(number * 2 * dim + dim + i, found->key_value->v_b.row(number * dim + i));
    }
  } else {
    const Piece& piece = found->pieces[0];
    for (std::size_t row = 0; row < info.rows; ++row)
      put(row, piece.matrix->row(piece.matrix->order().row(piece.piece, row)));
  }
  return all;
}

}  // namespace k3gate::decode
