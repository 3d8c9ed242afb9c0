// A chain of pointers through memory in random order, and the walk along it. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace k3gate {

// One pointer in each block of this many bytes. Next-line and pair prefetchers help below that, and the
// caches still fill up at their own size, as every region of n bytes takes its share of each set.
inline constexpr std::size_t kChaseBlock = 256;

// Links all blocks of a range into one cycle in random order (Sattolo's shuffle), each word holding the
// address of the next. `window_bytes` 0: over the whole range; else the blocks of one window are all visited
// before those of the next, and the windows in random order: with windows of 64 pages the walk misses the
// caches and not the TLB. `start` is at a multiple of 8; the last bytes of the range that make no block stay
// as they are. Needs two blocks.
void build_cycle(std::uint64_t* start, std::size_t bytes, std::uint64_t seed, std::size_t window_bytes);

// Follows `steps` pointers, each load waiting for the one before; returns the address arrived at.
std::uintptr_t walk(std::uintptr_t address, std::uint64_t steps);

}  // namespace k3gate
