#include "kernels.hpp"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
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

// By streams: the next 32 KiB in eight parts of a page, a line of each in turn. Hardware fetches ahead within
// a page of 4 KiB alone, so one stream waits at the begin of each page, and eight wait one at a time.
constexpr std::size_t kStreams = 8;
constexpr std::size_t kWordsOfLine = 8;
constexpr std::size_t kWordsOfPage = 512;

// Whole lines; of what is less than eight pages an eighth, and 0 where there are no eight lines.
std::size_t words_of_stream(std::size_t left) {
  return std::min(kWordsOfPage, left / kStreams / kWordsOfLine * kWordsOfLine);
}

// On Zen 4 streams read 16 GB/s where one reads 26 (four of them, far apart); on Sapphire Rapids eight
// read 1.2 times as much as one. Processors that nobody measured are taken for the latter, but for AMD's.
bool streams_are_faster() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kAmd = 0x444d4163;  // "cAMD", the end of its name
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ecx != kAmd;
}

__attribute__((target("avx2"))) std::uint64_t read_one_avx2(Arrays arrays) {
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

__attribute__((target("avx2"))) std::uint64_t read_streams_avx2(Arrays arrays) {
  const std::size_t before = words_before_line(arrays.to, arrays.words);
  std::uint64_t sum = sum_words(arrays.to, before);
  const std::uint64_t* data = arrays.to + before;
  std::size_t left = arrays.words - before;
  __m256i sums[kStreams];
  for (__m256i& each : sums) each = _mm256_setzero_si256();
  for (std::size_t each = 0; (each = words_of_stream(left)) > 0;
       data += kStreams * each, left -= kStreams * each) {
    for (std::size_t i = 0; i < each; i += kWordsOfLine) {
#pragma GCC unroll 8
      for (std::size_t stream = 0; stream < kStreams; ++stream) {
        const auto* vectors = reinterpret_cast<const __m256i*>(data + stream * each + i);
        sums[stream] = _mm256_add_epi64(
            sums[stream], _mm256_add_epi64(_mm256_load_si256(vectors), _mm256_load_si256(vectors + 1)));
      }
    }
  }
  for (std::size_t i = 1; i < kStreams; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums[0]);
  sum += lanes[0] + lanes[1] + lanes[2] + lanes[3];
  return sum + sum_words(data, left);
}

__attribute__((target("avx512f"))) std::uint64_t read_one_avx512(Arrays arrays) {
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

__attribute__((target("avx512f"))) std::uint64_t read_streams_avx512(Arrays arrays) {
  const std::size_t before = words_before_line(arrays.to, arrays.words);
  std::uint64_t sum = sum_words(arrays.to, before);
  const std::uint64_t* data = arrays.to + before;
  std::size_t left = arrays.words - before;
  __m512i sums[kStreams];
  for (__m512i& each : sums) each = _mm512_setzero_si512();
  for (std::size_t each = 0; (each = words_of_stream(left)) > 0;
       data += kStreams * each, left -= kStreams * each) {
    for (std::size_t i = 0; i < each; i += kWordsOfLine) {
#pragma GCC unroll 8
      for (std::size_t stream = 0; stream < kStreams; ++stream)
        sums[stream] = _mm512_add_epi64(sums[stream], _mm512_load_si512(data + stream * each + i));
    }
  }
  for (std::size_t i = 1; i < kStreams; ++i) sums[0] = _mm512_add_epi64(sums[0], sums[i]);
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, sums[0]);
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum + sum_words(data, left);
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

// "read" is what is faster on this CPU; the two are there by their own names for tests and benchmarks.
std::vector<Kernel> read_kernels() {
#if defined(__x86_64__)
  const bool streams = streams_are_faster();
  return {
      {"read", Isa::kAvx512, Work::kRead, kReadTraffic, streams ? read_streams_avx512 : read_one_avx512},
      {"read", Isa::kAvx2, Work::kRead, kReadTraffic, streams ? read_streams_avx2 : read_one_avx2},
      {"read", Isa::kGeneric, Work::kRead, kReadTraffic, read_generic},
      {"read_one", Isa::kAvx512, Work::kRead, kReadTraffic, read_one_avx512},
      {"read_one", Isa::kAvx2, Work::kRead, kReadTraffic, read_one_avx2},
      {"read_streams", Isa::kAvx512, Work::kRead, kReadTraffic, read_streams_avx512},
      {"read_streams", Isa::kAvx2, Work::kRead, kReadTraffic, read_streams_avx2},
  };
#elif defined(__aarch64__)
  return {
      {"read", Isa::kNeon, Work::kRead, kReadTraffic, read_neon},
      {"read", Isa::kGeneric, Work::kRead, kReadTraffic, read_generic},
  };
#else
  return {{"read", Isa::kGeneric, Work::kRead, kReadTraffic, read_generic}};
#endif
}

}  // namespace

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> both = read_kernels();
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
