// What the page cache holds of a file, and random bytes into one. No Python here.
#pragma once

#include <cstdint>

namespace k3gate::storage {

// Adds to `pages` and `resident` the pages of a range and those of them in memory (mincore). Returns 0 or
// errno.
int count_resident(int file, std::uint64_t start, std::uint64_t bytes, std::uint64_t& pages,
                   std::uint64_t& resident);

// Writes `bytes` of a generator's numbers (xoshiro256**) from `start` on, which no drive can make smaller,
// and has the kernel send them to the drive as it goes. Returns 0 or errno.
int write_random(int file, std::uint64_t start, std::uint64_t bytes, std::uint64_t seed);

}  // namespace k3gate::storage
