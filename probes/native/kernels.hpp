// The kernels that timed regions run, each with its traffic model beside it. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "isa.hpp"

namespace k3gate {

// What one 8-byte word of the walked range costs. `bus_bytes` adds what the hardware moves without being
// asked, such as the read for ownership of an ordinary store.
struct Traffic {
  double counted_bytes;
  double bus_bytes;
  double flops;
  std::string_view stores;    // "none", "ordinary", "non-temporal"
  std::string_view counting;  // the rule in words, as labels carry it
};

// A kernel walks one contiguous range of words (8-byte aligned) once and returns a checksum of what it saw.
// One that needs several arrays divides the range by itself.
using KernelFunction = std::uint64_t (*)(std::uint64_t* data, std::size_t words);

struct Kernel {
  std::string_view name;
  Isa isa;
  Traffic traffic;
  KernelFunction run;
};

// All kernels compiled in, whether or not this CPU can run them.
std::span<const Kernel> kernels();

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
