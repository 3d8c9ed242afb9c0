#include "arrays.hpp"

#include <algorithm>
#include <bit>

namespace k3gate {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
// From this size of an array on, less than a tenth is lost by beginning at a page.
constexpr std::size_t kLargeArray = std::size_t{64} << 10;
constexpr std::size_t kMarkWords = 8192;

std::size_t count_of(Work work) { return work == Work::kTriad ? 3 : work == Work::kCopy ? 2 : 1; }

// Whole numbers, so small that the triad is exact however it is rounded or fused.
double triad_first(std::size_t i, std::uint64_t seed) {
  return static_cast<double>((i & 0xfffff) + 1 + (seed & 0xff));
}
double triad_second(std::size_t i, std::uint64_t seed) {
  return static_cast<double>(((i >> 4) & 0xffff) + 1 + ((seed >> 8) & 0xff));
}

std::uint64_t pattern_at(const Part& part, const std::uint64_t* word) {
  const auto index = static_cast<std::uint64_t>(word - part.pool->words());
  return part.seed + (index + 1) * kPatternStep;
}

// What the kernel leaves in word i of its written array.
std::uint64_t stored(const Kernel& kernel, const Part& part, const Arrays& arrays, std::size_t i) {
  if (kernel.work == Work::kWrite) return arrays.value;
  if (kernel.work == Work::kCopy) return pattern_at(part, arrays.first + i);
  return std::bit_cast<std::uint64_t>(triad_first(i, part.seed) + kTriadScale * triad_second(i, part.seed));
}

// Somewhere in each block of marks, so that no vector lane or unrolled step is left out.
std::size_t mark_in(std::size_t block, std::uint64_t seed) {
  return block * kMarkWords +
         static_cast<std::size_t>(((block + 1) * kPatternStep ^ seed) >> 20) % kMarkWords;
}

}  // namespace

Arrays arrays_of(const Kernel& kernel, const Part& part) {
  std::uint64_t* start = part.pool->words() + part.offset / 8;
  if (!kernel.stores()) return Arrays{.to = start, .words = part.bytes / 8};
  const std::size_t lead = (kLine - part.offset % kLine) % kLine;  // a pool begins at a page
  const std::size_t bytes = part.bytes > lead ? part.bytes - lead : 0;
  const std::size_t count = count_of(kernel.work);
  std::size_t size = bytes / count;
  if (count > 1) size -= size % (size >= kLargeArray ? kPage : kLine);
  std::uint64_t* to = start + std::min(lead, part.bytes) / 8;
  Arrays arrays{.to = to, .words = size / 8, .value = (part.seed ^ kPatternStep) | 1};  // never zero
  if (count > 1) arrays.first = to + arrays.words;
  if (count > 2) arrays.second = to + 2 * arrays.words;
  return arrays;
}

void prepare(const Kernel& kernel, const Part& part) {
  std::uint64_t* start = part.pool->words() + part.offset / 8;
  write_pattern(start, part.bytes / 8, part.offset / 8, part.seed);
  if (kernel.work != Work::kTriad) return;
  const Arrays arrays = arrays_of(kernel, part);
  std::uint64_t* first = arrays.to + arrays.words;
  std::uint64_t* second = first + arrays.words;
  for (std::size_t i = 0; i < arrays.words; ++i) {
    first[i] = std::bit_cast<std::uint64_t>(triad_first(i, part.seed));
    second[i] = std::bit_cast<std::uint64_t>(triad_second(i, part.seed));
  }
}

std::uint64_t count_unwritten(const Kernel& kernel, const Part& part) {
  const Arrays arrays = arrays_of(kernel, part);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < arrays.words; ++i)
    wrong += arrays.to[i] != stored(kernel, part, arrays, i) ? 1 : 0;
  return wrong;
}

void spoil_marks(const Kernel& kernel, const Part& part) {
  const Arrays arrays = arrays_of(kernel, part);
  for (std::size_t block = 0; block * kMarkWords < arrays.words; ++block) {
    const std::size_t mark = std::min(mark_in(block, part.seed), arrays.words - 1);
    arrays.to[mark] = ~stored(kernel, part, arrays, mark);
  }
}

std::uint64_t count_unwritten_marks(const Kernel& kernel, const Part& part) {
  const Arrays arrays = arrays_of(kernel, part);
  std::uint64_t wrong = 0;
  for (std::size_t block = 0; block * kMarkWords < arrays.words; ++block) {
    const std::size_t mark = std::min(mark_in(block, part.seed), arrays.words - 1);
    wrong += arrays.to[mark] != stored(kernel, part, arrays, mark) ? 1 : 0;
  }
  return wrong;
}

}  // namespace k3gate
