#include "kernels.hpp"

#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace k3gate {
namespace {

// Read: the sum of all words. Every byte is loaded once and nothing is stored, so the bus carries exactly
// what is counted. Integer adds: floating point would allow neither reordering nor an exact checksum.
constexpr Traffic kReadTraffic = {
    .counted_bytes = 8,
    .bus_bytes = 8,
    .flops = 0,
    .stores = "none",
    .counting = "bus bytes = counted bytes: loads only",
};

std::uint64_t sum_words(const std::uint64_t* data, std::size_t words) {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  std::uint64_t d = 0;
  std::size_t i = 0;
  for (; i + 4 <= words; i += 4) {
    a += data[i];
    b += data[i + 1];
    c += data[i + 2];
    d += data[i + 3];
  }
  for (; i < words; ++i) a += data[i];
  return a + b + c + d;
}

std::uint64_t read_generic(Arrays arrays) { return sum_words(arrays.to, arrays.words); }

#if defined(__x86_64__)
// A range starts at any word; the lines themselves are read aligned, as a load that straddles two lines
// takes two accesses.
std::size_t words_before_line(const std::uint64_t* data, std::size_t words) {
  const std::size_t before = ((64 - reinterpret_cast<std::uintptr_t>(data) % 64) % 64) / 8;
  return before < words ? before : words;
}

__attribute__((target("avx2"))) std::uint64_t read_avx2(Arrays arrays) {
  const std::size_t before = words_before_line(arrays.to, arrays.words);
  std::uint64_t sum = sum_words(arrays.to, before);
  const std::uint64_t* line = arrays.to + before;
  std::size_t left = arrays.words - before;
  __m256i a = _mm256_setzero_si256();
  __m256i b = a;
  __m256i c = a;
  __m256i d = a;
  for (; left >= 32; left -= 32, line += 32) {
    const auto* vectors = reinterpret_cast<const __m256i*>(line);
    a = _mm256_add_epi64(a, _mm256_load_si256(vectors));
    b = _mm256_add_epi64(b, _mm256_load_si256(vectors + 1));
    c = _mm256_add_epi64(c, _mm256_load_si256(vectors + 2));
    d = _mm256_add_epi64(d, _mm256_load_si256(vectors + 3));
    a = _mm256_add_epi64(a, _mm256_load_si256(vectors + 4));
    b = _mm256_add_epi64(b, _mm256_load_si256(vectors + 5));
    c = _mm256_add_epi64(c, _mm256_load_si256(vectors + 6));
    d = _mm256_add_epi64(d, _mm256_load_si256(vectors + 7));
  }
  a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), a);
  sum += lanes[0] + lanes[1] + lanes[2] + lanes[3];
  for (std::size_t i = 0; i < left; ++i) sum += line[i];
  return sum;
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(Arrays arrays) {
  const std::size_t before = words_before_line(arrays.to, arrays.words);
  std::uint64_t sum = sum_words(arrays.to, before);
  const std::uint64_t* line = arrays.to + before;
  std::size_t left = arrays.words - before;
  __m512i a = _mm512_setzero_si512();
  __m512i b = a;
  __m512i c = a;
  __m512i d = a;
  for (; left >= 64; left -= 64, line += 64) {
    a = _mm512_add_epi64(a, _mm512_load_si512(line));
    b = _mm512_add_epi64(b, _mm512_load_si512(line + 8));
    c = _mm512_add_epi64(c, _mm512_load_si512(line + 16));
    d = _mm512_add_epi64(d, _mm512_load_si512(line + 24));
    a = _mm512_add_epi64(a, _mm512_load_si512(line + 32));
    b = _mm512_add_epi64(b, _mm512_load_si512(line + 40));
    c = _mm512_add_epi64(c, _mm512_load_si512(line + 48));
    d = _mm512_add_epi64(d, _mm512_load_si512(line + 56));
  }
  a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, a);
  for (const std::uint64_t lane : lanes) sum += lane;
  for (std::size_t i = 0; i < left; ++i) sum += line[i];
  return sum;
}
#elif defined(__aarch64__)
std::uint64_t read_neon(Arrays arrays) {
  const std::uint64_t* data = arrays.to;
  const std::size_t words = arrays.words;
  uint64x2_t a = vdupq_n_u64(0);
  uint64x2_t b = a;
  uint64x2_t c = a;
  uint64x2_t d = a;
  std::size_t i = 0;
  for (; i + 16 <= words; i += 16) {
    a = vaddq_u64(a, vld1q_u64(data + i));
    b = vaddq_u64(b, vld1q_u64(data + i + 2));
    c = vaddq_u64(c, vld1q_u64(data + i + 4));
    d = vaddq_u64(d, vld1q_u64(data + i + 6));
    a = vaddq_u64(a, vld1q_u64(data + i + 8));
    b = vaddq_u64(b, vld1q_u64(data + i + 10));
    c = vaddq_u64(c, vld1q_u64(data + i + 12));
    d = vaddq_u64(d, vld1q_u64(data + i + 14));
  }
  std::uint64_t sum = vaddvq_u64(vaddq_u64(vaddq_u64(a, b), vaddq_u64(c, d)));
  for (; i < words; ++i) sum += data[i];
  return sum;
}
#endif

constexpr Kernel kReadKernels[] = {
#if defined(__x86_64__)
    {"read", Isa::kAvx512, Work::kRead, kReadTraffic, read_avx512},
    {"read", Isa::kAvx2, Work::kRead, kReadTraffic, read_avx2},
#elif defined(__aarch64__)
    {"read", Isa::kNeon, Work::kRead, kReadTraffic, read_neon},
#endif
    {"read", Isa::kGeneric, Work::kRead, kReadTraffic, read_generic},
};

}  // namespace

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> both(std::begin(kReadKernels), std::end(kReadKernels));
    const std::span<const Kernel> storing = store_kernels();
    both.insert(both.end(), storing.begin(), storing.end());
    return both;
  }();
  return all;
}

const Kernel* find_kernel(std::string_view name, std::string_view isa) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.name == name && name_of(kernel.isa) == isa) return &kernel;
  }
  return nullptr;
}

void write_pattern(std::uint64_t* data, std::size_t words, std::uint64_t first_index, std::uint64_t seed) {
  const std::uint64_t start = seed + (first_index + 1) * kPatternStep;
  for (std::size_t i = 0; i < words; ++i) data[i] = start + i * kPatternStep;
}

std::uint64_t count_mismatches(const std::uint64_t* data, std::size_t words, std::uint64_t first_index,
                               std::uint64_t seed) {
  std::uint64_t value = seed + (first_index + 1) * kPatternStep;
  std::uint64_t wrong = 0;
  // Without a branch, so that it runs at the speed of memory.
  for (std::size_t i = 0; i < words; ++i, value += kPatternStep) wrong += data[i] != value ? 1 : 0;
  return wrong;
}

}  // namespace k3gate
