#include "shape.hpp"

#include <array>
#include <stdexcept>

#include "../gemm/gemm.hpp"

namespace k3gate::decode {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

std::string_view name_of(Part part) {
  static constexpr std::array<std::string_view, kMemoryParts> kNames = {"attention_projections",
                                                                        "attention_core",
                                                                        "router",
                                                                        "latent",
                                                                        "routed",
                                                                        "shared",
                                                                        "dense",
                                                                        "head",
                                                                        "mix",
                                                                        "synchronisation",
                                                                        "embedding",
                                                                        "state",
                                                                        "cache",
                                                                        "work"};
  return kNames.at(static_cast<std::size_t>(part));
}

void check(const Setup& setup) {
  const Shape& shape = setup.shape;
  constexpr std::size_t kMost = std::size_t{1} << 20;
  for (const std::size_t depth : {shape.hidden, shape.width, shape.inner, shape.head_dim, shape.query_rank,
                                  shape.cache_rank, shape.rest, shape.decay_rank, shape.dense_inner})
    require(depth != 0 && depth % gemm::kGroup == 0 && depth <= kMost,
            "widths are multiples of 32, below 2^20");
  require(shape.layers >= 1 && shape.layers <= 1024 && shape.mla.size() == shape.layers,
          "layers are 1 to 1024");
  require(shape.dense_layers <= 1, "at most the first layer is dense");
  require(shape.heads >= 1 && shape.heads <= 1024, "heads are 1 to 1024");
  require(shape.experts >= 1 && shape.experts <= 4096, "experts are 1 to 4096");
  require(shape.router_rows >= shape.experts && shape.router_rows <= 4096,
          "the router has a row for each expert, and at most 4096");
  require(shape.used >= 1 && shape.used <= kMostUsed && shape.used <= shape.experts,
          "experts used are 1 to 64, and not more than there are");
  require(shape.shared <= 8, "shared experts are at most 8");
  require(shape.convolution >= 2 && shape.convolution <= 8, "convolutions are 2 to 8 wide");
  require(shape.block_layers >= 1, "a block has a layer");
  require(shape.vocabulary >= 1 && shape.vocabulary <= kMost, "the vocabulary is 1 to 2^20");
  require(shape.dense_layers == 0 || setup.trunk || shape.layers > shape.dense_layers,
          "without a trunk there is nothing but layers with experts");
  require(setup.batch >= 1 && setup.batch <= 32, "batches are 1 to 32");
  require(setup.positions >= 1 && setup.positions <= gemm::kMostTokens, "positions are 1 to 512");
  require(setup.context <= kMost && setup.room >= 1 && setup.room <= kMost, "contexts are below 2^20");
  require(!setup.nodes.empty() && setup.nodes.size() == setup.cpus.size() && setup.nodes.size() <= 32,
          "there are 1 to 32 nodes");
  for (const std::vector<int>& cpus : setup.cpus) require(!cpus.empty(), "each node has a CPU");
}

}  // namespace k3gate::decode
