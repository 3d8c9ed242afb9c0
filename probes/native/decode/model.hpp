// The layers of a miniature: its matrices and vectors by their released names, states and caches, and where
// each lies. No Python here.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "matrix.hpp"
#include "memory.hpp"
#include "shape.hpp"

namespace k3gate::decode {

// Rows of a cache lie in turns of so many on each node.
inline constexpr std::size_t kCacheRun = 64;

// A short tensor, with a copy on each node.
struct Vec {
  std::size_t count = 0;
  std::vector<float> values;
  std::vector<Place> places;
  std::vector<float*> at;  // of each node
};

struct Mix {  // of AttnRes: norm and proj, and their product, which is what is used
  Vec norm, proj, both;
};

struct Kda {
  Matrix proj;  // q, k, v and gate of each head in turns, then what decays come from, then betas
  Matrix f_b;
  Matrix out;
  Vec taps[3];
  Vec bias, a_log, steepness, norm;
  std::vector<Place> states;  // of each node: [sequence][head of the node][dim][dim]
  std::vector<Place> pasts;   // [sequence][head of the node][q, k, v][convolution - 1][dim]
};

struct Mla {
  Matrix proj;  // query's low rank; cache's row; gate
  Vec query_norm, cache_norm;
  Matrix q_b;
  Matrix k_b;  // [heads x rank, dim]
  Matrix v_b;  // [heads x dim, rank]
  Matrix out;
  std::vector<Place> caches;  // of each node: BF16 [sequence][rows of the node][rank + rest]
};

struct Mlp {
  Matrix gate_up;
  Matrix down;
};

struct Moe {
  Matrix router;
  Vec bias, norm;
  Matrix latent_down, latent_up;
  std::optional<Mlp> shared;
  std::vector<std::vector<std::optional<Mlp>>> experts;  // of each group of threads: [expert]
};

struct Layer {
  Vec attention_norm, mlp_norm;
  Mix attention_mix, mlp_mix;
  std::optional<Kda> kda;
  std::optional<Mla> mla;
  std::optional<Mlp> dense;
  std::optional<Moe> moe;
};

// Which thread lies where. Threads are numbered node after node.
struct Threads {
  explicit Threads(const Setup& setup);

  std::vector<std::size_t> node;   // of each thread
  std::vector<std::size_t> first;  // thread of each node; one more
  std::vector<std::size_t> home;   // of each row that is worked on, by turns of nodes
  std::vector<int> cpus;

  std::size_t count() const { return node.size(); }
  std::size_t nodes() const { return first.size() - 1; }
  std::size_t of_node(std::size_t n) const { return first[n + 1] - first[n]; }
};

struct TensorInfo {
  std::string name;
  std::string format;
  std::size_t rows;
  std::size_t depth;
};

class Model {
 public:
  // Plans alone; `allocate` takes memory.
  explicit Model(const Setup& setup);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Setup& setup() const { return setup_; }
  const Threads& threads() const { return threads_; }
  Memory& memory() { return memory_; }
  const Memory& memory() const { return memory_; }
  // Groups of threads that each execute experts of their own.
  std::size_t groups() const { return groups_; }

  void allocate();
  // Whose random numbers depend on the setup's seed alone. By one thread of the team; all have to.
  void fill(std::size_t thread) const;
  // The short tensors, once; makes the tiles that `fill` copies.
  void prepare_fill();

  std::vector<TensorInfo> tensors() const;
  // As a checkpoint stores them; throws std::invalid_argument.
  void load(const std::string& name, const std::string& format, const std::byte* data, std::size_t bytes,
            const std::byte* scales, std::size_t scale_bytes);
  // Row by row what lies in memory.
  std::vector<float> weights(const std::string& name) const;
  // The first tensor that was not loaded, or "".
  std::string missing() const;

  std::vector<Layer> layers;
  Mix output_mix;
  Vec norm;
  Matrix head;
  // Heads of KDA that belong to each node's threads; one more.
  std::vector<std::size_t> first_head;
  std::size_t cache_rows;  // of each node and sequence

  // One row of the embedding, as float32.
  void embed(std::size_t token, float* to) const;

 private:
  struct Piece {
    Matrix* matrix;
    std::size_t piece;
  };
  struct Found {
    std::vector<Piece> pieces;  // where the tensor lies, once or on each node
    Vec* vec = nullptr;
    Mix* mix = nullptr;  // to be made again
    Kda* kda = nullptr;
    Mla* key_value = nullptr;
    bool embedding = false;
    TensorInfo info;
  };
  template <class Visit>
  void visit(const Visit& visit) const;
  std::optional<Found> find(const std::string& name) const;
  Vec take_vec(std::size_t count);
  Mix take_mix();
  Matrix take(gemm::Format format, std::size_t depth, const std::shared_ptr<const Order>& order, Part part,
              std::size_t unit, std::size_t cut = 0);
  Matrix take_whole(std::size_t depth, const std::shared_ptr<const Order>& order, std::size_t pool,
                    std::uint64_t key);
  Kda take_kda();
  Mla take_mla();
  Moe take_moe();
  Mlp take_mlp(std::size_t inner, Part part);
  template <class Do>
  void each_matrix(const Do& act);
  template <class Do>
  void each_vec(const Do& act);
  void set(Vec& vec, std::vector<float> values) const;
  void set_mix(Mix& mix) const;
  void set_steepness(Kda& kda) const;
  void load_key_value(Mla& mla, const gemm::Source& source);
  void load_embedding(const gemm::Source& source);

  Setup setup_;
  Threads threads_;
  Memory memory_;
  std::size_t groups_;
  std::vector<std::size_t> pools_;  // of weights of each thread
  std::uint64_t next_key_ = 1;
  struct Orders {
    std::shared_ptr<const Order> kda_proj, across, hidden, mla_proj, q_b, k_b, v_b, router, width, shared,
        dense, expert, vocabulary;
  } orders_;
  Place embedding_;
  std::size_t embedding_row_ = 0;  // bytes
  std::vector<std::unique_ptr<Filler>> fillers_;
  std::vector<std::string> loaded_;
  bool filled_ = false;
};

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

}  // namespace k3gate::decode
