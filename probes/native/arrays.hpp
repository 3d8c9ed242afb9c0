// Parts of pools, the arrays that kernels see in them, and what those hold before and after. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.hpp"
#include "pool.hpp"

namespace k3gate {

// A range of a pool that one thread works on. `offset` and `bytes` are multiples of 8.
struct Part {
  Pool* pool;
  std::size_t offset;
  std::size_t bytes;
  std::uint64_t seed = 0;  // of the pool's pattern, of what is written, or of a cycle of pointers
};

// How a kernel divides a part: a kernel that only loads walks all of it. One that stores gets 1, 2 or 3
// arrays of equal size, the written one first, each at a line of 64 bytes; a few bytes at the end may belong
// to none. The arrays of a large part begin at the same place in their pages: a load must not seem to the
// processor to hit a store shortly before it, which it tells by the low 12 bits.
Arrays arrays_of(const Kernel& kernel, const Part& part);

// Fills a part for a kernel: the pool's pattern, and for the triad whole numbers in its two sources, as
// arbitrary bits would be slow or no numbers. What is written is never what the kernel will store there.
void prepare(const Kernel& kernel, const Part& part);

// How many words of the written array are not what the kernel leaves there. For kernels that store.
std::uint64_t count_unwritten(const Kernel& kernel, const Part& part);

// Spoils one word in each 64 KiB of the written array, and counts those that are still wrong: so each timed
// region proves that it stored, at a thousandth of the price of reading all back.
void spoil_marks(const Kernel& kernel, const Part& part);
std::uint64_t count_unwritten_marks(const Kernel& kernel, const Part& part);

}  // namespace k3gate
