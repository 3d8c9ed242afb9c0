#include "memory.hpp"

namespace k3gate::decode {

Place Memory::take(std::size_t pool, Part part, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const Place place{pool, sizes_.at(pool)};
  const std::size_t whole = (bytes + kLine - 1) / kLine * kLine;
  sizes_[pool] += whole;
  by_part_[pool][static_cast<std::size_t>(part)] += whole;
  return place;
}

void Memory::allocate(const Setup& setup) {
  pools_.resize(sizes_.size());
  bind_errors_.assign(sizes_.size(), 0);
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] == 0) continue;
    // Kernels fetch a little ahead of what they read.
    pools_[i] = std::make_unique<Pool>(sizes_[i], setup.pages);
    if (!setup.bind) continue;
    bind_errors_[i] = i < nodes() ? pools_[i]->bind(setup.nodes[i]) : pools_[i]->interleave(setup.nodes);
  }
}

void Memory::touch() const {
  constexpr std::size_t kPage = 4096;
  for (const std::unique_ptr<Pool>& pool : pools_) {
    if (pool == nullptr) continue;
    auto* const bytes = reinterpret_cast<volatile unsigned char*>(pool->words());
    for (std::size_t at = 0; at < pool->bytes(); at += kPage) bytes[at] = bytes[at];
  }
}

}  // namespace k3gate::decode
