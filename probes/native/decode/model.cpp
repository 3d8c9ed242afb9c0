#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace k3gate::decode {
namespace {

using gemm::Format;
using gemm::kTileRows;
using gemm::scale_bytes;
using gemm::value_bytes;

constexpr std::size_t kStreams = 4;  // tiles that kernels read at once

std::shared_ptr<const Order> share(Order order) { return std::make_shared<const Order>(std::move(order)); }

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
}  // namespace k3gate::decode
