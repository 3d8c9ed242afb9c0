// What a miniature Kimi K3 is, and how it lies on a machine. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../gemm/weights.hpp"
#include "../pool.hpp"

namespace k3gate::decode {

// What a step's time and traffic are divided into, and what memory is for.
enum class Part : std::uint8_t {
  kAttention,
  kCore,
  kRouter,
  kLatent,
  kRouted,
  kShared,
  kDense,
  kHead,
  kMix,
  kSynchronisation,
  // Of memory alone:
  kEmbedding,
  kState,
  kCache,
  kWork,
};
inline constexpr std::size_t kParts = 10;
inline constexpr std::size_t kMemoryParts = 14;

std::string_view name_of(Part part);

struct Shape {
  std::size_t layers, experts, dense_layers, hidden, width, inner, router_rows, used, shared, heads, head_dim,
      query_rank, cache_rank, rest, decay_rank, convolution, dense_inner, block_layers, vocabulary;
  std::vector<bool> mla;  // of each layer

  std::size_t across() const { return heads * head_dim; }
  std::size_t key() const { return head_dim + rest; }
  std::size_t cached() const { return cache_rank + rest; }
  bool dense(std::size_t layer) const { return layer < dense_layers; }
};

enum class Placement { kOwner, kInterleaved, kReplicated, kSingle };

struct Setup {
  Shape shape;
  bool trunk;           // false: left out
  gemm::Format format;  // of the trunk
  std::string path;
  Placement placement;
  Pages pages;
  bool bind;
  std::vector<int> nodes;
  std::vector<std::vector<int>> cpus;  // of each node; one at least has any
  std::size_t batch, positions, context, room;
  std::uint64_t seed;

  std::size_t rows() const { return batch > positions ? batch : positions; }
};

// Throws std::invalid_argument, saying which number can not be.
void check(const Setup& setup);

inline constexpr float kEpsilon = 1e-5F;    // of every root mean square
inline constexpr float kL2Epsilon = 1e-6F;  // under the root of the norm of queries and keys
inline constexpr float kLeastDecay = -5.0F;
inline constexpr std::size_t kMostUsed = 64;

}  // namespace k3gate::decode
