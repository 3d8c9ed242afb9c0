#include "chase.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace k3gate {
namespace {

__extension__ using Wide = unsigned __int128;

// SplitMix64: the same cycle for the same seed on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  // 0 <= result < bound, evenly but for bound / 2^64.
  std::size_t below(std::size_t bound) {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return static_cast<std::size_t>((static_cast<Wide>(z) * bound) >> 64);
  }

 private:
  std::uint64_t state_;
};

}  // namespace

void build_cycle(std::uint64_t* start, std::size_t bytes, std::uint64_t seed, std::size_t window_bytes) {
  constexpr std::size_t kStep = kChaseBlock / sizeof(std::uint64_t);
  const std::size_t blocks = bytes / kChaseBlock;
  const std::size_t window =
      window_bytes == 0 ? blocks : std::max<std::size_t>(window_bytes / kChaseBlock, 1);
  const auto at = [start](std::size_t block) -> std::uint64_t& { return start[block * kStep]; };
  Dice dice(seed);
  for (std::size_t i = 0; i < blocks; ++i) at(i) = reinterpret_cast<std::uintptr_t>(&at(i));
  // A cycle in each window: swapping only with what lies before, never in place, leaves no smaller one.
  std::vector<std::size_t> heads;  // of each window: the first block
  for (std::size_t head = 0; head < blocks; head += window) {
    heads.push_back(head);
    const std::size_t size = std::min(window, blocks - head);
    for (std::size_t i = size - 1; i > 0; --i) std::swap(at(head + i), at(head + dice.below(i)));
  }
  if (heads.size() < 2) return;
  // The cycles are cut behind their heads and joined in the order of a cycle of windows.
  std::vector<std::uint64_t> entries(heads.size());
  for (std::size_t i = 0; i < heads.size(); ++i) entries[i] = at(heads[i]);
  for (std::size_t i = heads.size() - 1; i > 0; --i) std::swap(entries[i], entries[dice.below(i)]);
  for (std::size_t i = 0; i < heads.size(); ++i) at(heads[i]) = entries[i];
}

std::uintptr_t walk(std::uintptr_t address, std::uint64_t steps) {
  const auto next = [](std::uintptr_t from) {
    return *reinterpret_cast<const volatile std::uintptr_t*>(from);
  };
  // Unrolled, so that counting steps never shows beside a load from the nearest cache.
  for (; steps >= 8; steps -= 8) {
    address = next(next(next(next(address))));
    address = next(next(next(next(address))));
  }
  for (; steps > 0; --steps) address = next(address);
  return address;
}

}  // namespace k3gate
