// Where everything lies: planned first, for what is needed to be known before anything is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "../pool.hpp"
#include "shape.hpp"

namespace k3gate::decode {

struct Place {
  std::size_t pool = 0;
  std::size_t offset = 0;
};

class Memory {
 public:
  // Pools 0 to nodes - 1 are the nodes'; one more is interleaved over all of them.
  explicit Memory(std::size_t nodes) : sizes_(nodes + 1), by_part_(nodes + 1) {}

  std::size_t nodes() const { return sizes_.size() - 1; }
  std::size_t interleaved() const { return nodes(); }
  Place take(std::size_t pool, Part part, std::size_t bytes);
  const std::array<std::size_t, kMemoryParts>& by_part(std::size_t pool) const { return by_part_.at(pool); }

  // Throws std::system_error where there is no memory.
  void allocate(const Setup& setup);
  // Brings every page in that nothing has written to yet: such pages lie on no node, and would be faulted in
  // by a step.
  void touch() const;
  template <class T = std::byte>
  T* at(const Place& place) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(pools_[place.pool]->words()) + place.offset);
  }
  // nullptr where nothing is in it.
  Pool* pool(std::size_t index) const { return pools_.at(index).get(); }
  int bind_error(std::size_t index) const { return bind_errors_.at(index); }

 private:
  std::vector<std::size_t> sizes_;
  std::vector<std::array<std::size_t, kMemoryParts>> by_part_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<int> bind_errors_;
};

}  // namespace k3gate::decode
