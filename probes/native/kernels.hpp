// The kernels that timed regions run, each with its traffic model beside it. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "isa.hpp"

namespace k3gate {

// What one step of the loop costs: one 8-byte word of each array. `bus_bytes` adds what the hardware moves
// without being asked, such as the read for ownership of a cached store.
struct Traffic {
  double counted_bytes;
  double bus_bytes;
  double flops;
  std::string_view stores;    // "none", "cached", "non_temporal"
  std::string_view counting;  // the rule in words, as labels carry it
};

// The arrays that a kernel walks, of `words` 8-byte words each. Where it stores, `to` is at a line of 64
// bytes, and so are the sources that it has; a kernel that only loads takes any word.
struct Arrays {
  std::uint64_t* to = nullptr;            // written; the one array of a kernel that only loads
  const std::uint64_t* first = nullptr;   // copy: the source; triad: b
  const std::uint64_t* second = nullptr;  // triad: c
  std::size_t words = 0;
  std::uint64_t value = 0;  // what `write` stores
};

// A kernel walks its arrays once and returns the sum of what it loaded; 0 where it stores.
// By value, so that a loop keeps them in registers.
using KernelFunction = std::uint64_t (*)(Arrays arrays);

enum class Work { kRead, kWrite, kCopy, kTriad };

struct Kernel {
  std::string_view name;
  Isa isa;
  Work work;
  Traffic traffic;
  KernelFunction run;

  constexpr bool stores() const { return work != Work::kRead; }
};

// a[i] = b[i] + kTriadScale * c[i]
inline constexpr double kTriadScale = 3.0;

// All kernels compiled in, whether or not this CPU can run them.
std::span<const Kernel> kernels();

// Those of them that store; kernels() has them too.
std::span<const Kernel> store_kernels();

// The kernel of that name and instruction set; nullptr where there is none.
const Kernel* find_kernel(std::string_view name, std::string_view isa);

// The pattern that fills a pool: word i holds seed + (i + 1) * kPatternStep, modulo 2^64. Its sum over any
// range has a closed form, so that a read kernel's checksum is known without reading the memory.
inline constexpr std::uint64_t kPatternStep = 0x9e3779b97f4a7c15ULL;

void write_pattern(std::uint64_t* data, std::size_t words, std::uint64_t first_index, std::uint64_t seed);

// How many words differ from the pattern.
std::uint64_t count_mismatches(const std::uint64_t* data, std::size_t words, std::uint64_t first_index,
                               std::uint64_t seed);

}  // namespace k3gate
