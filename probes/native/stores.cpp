// The kernels that store, with cached and with non-temporal stores.
//
// A cached store of a line that is not in the cache first reads it from memory (read for ownership,
// write-allocate) although all of it is overwritten; it comes back to memory when the line is evicted. A
// non-temporal store gathers the whole line in a write-combining buffer and sends it to memory once. Some
// processors turn cached stores of whole lines into such ones by themselves (SpecI2M, Arm's write streaming);
// then the bus carries less than the model says, which the model's words mention and nothing here can see.
#include <bit>

#include "kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace k3gate {
namespace {

// write: a[i] = value. 8 bytes are stored; cached, the line is read first.
constexpr Traffic kWrite = {8, 16, 0, "cached", "stores counted once; the bus also reads each line (RFO)"};
constexpr Traffic kWriteNt = {8, 8, 0, "non_temporal", "bus bytes = counted bytes: stores past the caches"};
// copy: a[i] = b[i]. 8 bytes are loaded and 8 stored; cached, the destination's line is read too.
constexpr Traffic kCopy = {
    16, 24, 0, "cached", "loads and stores counted once; the bus also reads each line that is stored (RFO)"};
constexpr Traffic kCopyNt = {16, 16, 0, "non_temporal",
                             "bus bytes = counted bytes: loads, and stores past the caches"};
// triad: a[i] = b[i] + s * c[i]. 16 bytes are loaded and 8 stored; cached, the destination's line is read
// too.
constexpr Traffic kTriad = {
    24, 32, 2, "cached", "loads and stores counted once; the bus also reads each line that is stored (RFO)"};
constexpr Traffic kTriadNt = {24, 24, 2, "non_temporal",
                              "bus bytes = counted bytes: loads, and stores past the caches"};

// Keeps what is before it before what is after it. Without it compilers see memset and memcpy in these loops,
// and those choose non-temporal stores on their own. Between loads and stores, and after each store, it keeps
// them in the order of the lines: memory that gets bursts one way before those the other way is some percent
// faster.
inline void keep_order() { __asm__ volatile("" ::: "memory"); }

inline std::uint64_t triad_word(std::uint64_t b, std::uint64_t c) {
  return std::bit_cast<std::uint64_t>(std::bit_cast<double>(b) + kTriadScale * std::bit_cast<double>(c));
}

// Non-temporal stores are weakly ordered: the time must not end before they are globally visible.
template <bool NonTemporal>
inline std::uint64_t finished() {
#if defined(__x86_64__)
  if constexpr (NonTemporal) _mm_sfence();
#elif defined(__aarch64__)
  if constexpr (NonTemporal) __asm__ volatile("dmb ishst" ::: "memory");
#endif
  return 0;
}

template <bool NonTemporal>
inline void put(std::uint64_t* to, std::uint64_t value) {
#if defined(__x86_64__)
  // SSE2 is the baseline of x86-64, so the generic kernels have non-temporal stores there.
  if constexpr (NonTemporal) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(value));
    return;
  }
#endif
  *to = value;
}

template <bool NonTemporal>
void write_rest(Arrays at, std::size_t i) {
  for (; i < at.words; ++i) {
    put<NonTemporal>(at.to + i, at.value);
    keep_order();
  }
}

template <bool NonTemporal>
void copy_rest(Arrays at, std::size_t i) {
  for (; i < at.words; ++i) {
    put<NonTemporal>(at.to + i, at.first[i]);
    keep_order();
  }
}

template <bool NonTemporal>
void triad_rest(Arrays at, std::size_t i) {
  for (; i < at.words; ++i) {
    put<NonTemporal>(at.to + i, triad_word(at.first[i], at.second[i]));
    keep_order();
  }
}

template <bool NonTemporal>
std::uint64_t write_generic(Arrays at) {
  std::size_t i = 0;
  for (; i + 8 <= at.words; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) put<NonTemporal>(at.to + i + k, at.value);
    keep_order();
  }
  write_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
std::uint64_t copy_generic(Arrays at) {
  std::size_t i = 0;
  for (; i + 8 <= at.words; i += 8) {
    std::uint64_t word[8];
    for (std::size_t k = 0; k < 8; ++k) word[k] = at.first[i + k];
    for (std::size_t k = 0; k < 8; ++k) put<NonTemporal>(at.to + i + k, word[k]);
    keep_order();
  }
  copy_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
std::uint64_t triad_generic(Arrays at) {
  std::size_t i = 0;
  for (; i + 8 <= at.words; i += 8) {
    std::uint64_t word[8];
    for (std::size_t k = 0; k < 8; ++k) word[k] = triad_word(at.first[i + k], at.second[i + k]);
    for (std::size_t k = 0; k < 8; ++k) put<NonTemporal>(at.to + i + k, word[k]);
    keep_order();
  }
  triad_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

#if defined(__x86_64__)
#define K3GATE_AVX2 __attribute__((target("avx2")))
#define K3GATE_AVX512 __attribute__((target("avx512f")))

template <bool NonTemporal>
K3GATE_AVX2 inline void put_avx2(std::uint64_t* to, __m256i value) {
  auto* vector = reinterpret_cast<__m256i*>(to);
  if constexpr (NonTemporal) {
    _mm256_stream_si256(vector, value);
  } else {
    _mm256_store_si256(vector, value);
  }
}

K3GATE_AVX2 inline __m256i get_avx2(const std::uint64_t* from) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

template <bool NonTemporal>
K3GATE_AVX2 std::uint64_t write_avx2(Arrays at) {
  const __m256i value = _mm256_set1_epi64x(static_cast<long long>(at.value));
  std::size_t i = 0;
  for (; i + 32 <= at.words; i += 32) {
    for (std::size_t k = 0; k < 32; k += 4) put_avx2<NonTemporal>(at.to + i + k, value);
    keep_order();
  }
  write_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
K3GATE_AVX2 std::uint64_t copy_avx2(Arrays at) {
  std::size_t i = 0;
  for (; i + 32 <= at.words; i += 32) {
    __m256i vector[8];
    for (std::size_t k = 0; k < 8; ++k) vector[k] = get_avx2(at.first + i + 4 * k);
    for (std::size_t k = 0; k < 8; ++k) put_avx2<NonTemporal>(at.to + i + 4 * k, vector[k]);
    keep_order();
  }
  copy_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

// Multiplied and added apart, as AVX2 does not imply FMA; the arithmetic is hidden behind memory anyway.
template <bool NonTemporal>
K3GATE_AVX2 std::uint64_t triad_avx2(Arrays at) {
  const __m256d scale = _mm256_set1_pd(kTriadScale);
  std::size_t i = 0;
  for (; i + 32 <= at.words; i += 32) {
    __m256d vector[8];
    for (std::size_t k = 0; k < 8; ++k) {
      const __m256d c = _mm256_castsi256_pd(get_avx2(at.second + i + 4 * k));
      vector[k] = _mm256_add_pd(_mm256_castsi256_pd(get_avx2(at.first + i + 4 * k)), _mm256_mul_pd(scale, c));
    }
    for (std::size_t k = 0; k < 8; ++k)
      put_avx2<NonTemporal>(at.to + i + 4 * k, _mm256_castpd_si256(vector[k]));
    keep_order();
  }
  triad_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
K3GATE_AVX512 inline void put_avx512(std::uint64_t* to, __m512i value) {
  if constexpr (NonTemporal) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value);
  } else {
    _mm512_store_si512(to, value);
  }
}

template <bool NonTemporal>
K3GATE_AVX512 std::uint64_t write_avx512(Arrays at) {
  const __m512i value = _mm512_set1_epi64(static_cast<long long>(at.value));
  std::size_t i = 0;
  for (; i + 64 <= at.words; i += 64) {
    for (std::size_t k = 0; k < 64; k += 8) put_avx512<NonTemporal>(at.to + i + k, value);
    keep_order();
  }
  write_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

// Sixteen lines a step: half of the registers.
template <bool NonTemporal>
K3GATE_AVX512 std::uint64_t copy_avx512(Arrays at) {
  std::size_t i = 0;
  for (; i + 128 <= at.words; i += 128) {
    __m512i line[16];
    for (std::size_t k = 0; k < 16; ++k) line[k] = _mm512_load_si512(at.first + i + 8 * k);
    keep_order();
    for (std::size_t k = 0; k < 16; ++k) {
      put_avx512<NonTemporal>(at.to + i + 8 * k, line[k]);
      keep_order();
    }
  }
  copy_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
K3GATE_AVX512 std::uint64_t triad_avx512(Arrays at) {
  const __m512d scale = _mm512_set1_pd(kTriadScale);
  std::size_t i = 0;
  for (; i + 128 <= at.words; i += 128) {
    __m512d line[16];
    for (std::size_t k = 0; k < 16; ++k) {
      const __m512d c = _mm512_load_pd(at.second + i + 8 * k);
      line[k] = _mm512_fmadd_pd(scale, c, _mm512_load_pd(at.first + i + 8 * k));
    }
    keep_order();
    for (std::size_t k = 0; k < 16; ++k) {
      put_avx512<NonTemporal>(at.to + i + 8 * k, _mm512_castpd_si512(line[k]));
      keep_order();
    }
  }
  triad_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}
#elif defined(__aarch64__)
// STNP is a hint that a core may ignore; the model of the non-temporal kernels takes it to be followed.
template <bool NonTemporal>
inline void put_neon(std::uint64_t* to, uint64x2_t low, uint64x2_t high) {
  if constexpr (NonTemporal) {
    __asm__ volatile("stnp %q1, %q2, [%0]" ::"r"(to), "w"(low), "w"(high) : "memory");
  } else {
    vst1q_u64(to, low);
    vst1q_u64(to + 2, high);
  }
}

inline uint64x2_t triad_neon(uint64x2_t b, uint64x2_t c) {
  const float64x2_t product = vmulq_n_f64(vreinterpretq_f64_u64(c), kTriadScale);
  return vreinterpretq_u64_f64(vaddq_f64(vreinterpretq_f64_u64(b), product));
}

template <bool NonTemporal>
std::uint64_t write_neon(Arrays at) {
  const uint64x2_t value = vdupq_n_u64(at.value);
  std::size_t i = 0;
  for (; i + 16 <= at.words; i += 16) {
    for (std::size_t k = 0; k < 16; k += 4) put_neon<NonTemporal>(at.to + i + k, value, value);
    keep_order();
  }
  write_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
std::uint64_t copy_neon(Arrays at) {
  std::size_t i = 0;
  for (; i + 16 <= at.words; i += 16) {
    uint64x2_t vector[8];
    for (std::size_t k = 0; k < 8; ++k) vector[k] = vld1q_u64(at.first + i + 2 * k);
    for (std::size_t k = 0; k < 8; k += 2) put_neon<NonTemporal>(at.to + i + 2 * k, vector[k], vector[k + 1]);
    keep_order();
  }
  copy_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}

template <bool NonTemporal>
std::uint64_t triad_neon(Arrays at) {
  std::size_t i = 0;
  for (; i + 16 <= at.words; i += 16) {
    uint64x2_t vector[8];
    for (std::size_t k = 0; k < 8; ++k)
      vector[k] = triad_neon(vld1q_u64(at.first + i + 2 * k), vld1q_u64(at.second + i + 2 * k));
    for (std::size_t k = 0; k < 8; k += 2) put_neon<NonTemporal>(at.to + i + 2 * k, vector[k], vector[k + 1]);
    keep_order();
  }
  triad_rest<NonTemporal>(at, i);
  return finished<NonTemporal>();
}
#endif

constexpr Kernel kStoreKernels[] = {
#if defined(__x86_64__)
    {"write", Isa::kAvx512, Work::kWrite, kWrite, write_avx512<false>},
    {"write", Isa::kAvx2, Work::kWrite, kWrite, write_avx2<false>},
    {"write_nt", Isa::kAvx512, Work::kWrite, kWriteNt, write_avx512<true>},
    {"write_nt", Isa::kAvx2, Work::kWrite, kWriteNt, write_avx2<true>},
    {"write_nt", Isa::kGeneric, Work::kWrite, kWriteNt, write_generic<true>},
    {"copy", Isa::kAvx512, Work::kCopy, kCopy, copy_avx512<false>},
    {"copy", Isa::kAvx2, Work::kCopy, kCopy, copy_avx2<false>},
    {"copy_nt", Isa::kAvx512, Work::kCopy, kCopyNt, copy_avx512<true>},
    {"copy_nt", Isa::kAvx2, Work::kCopy, kCopyNt, copy_avx2<true>},
    {"copy_nt", Isa::kGeneric, Work::kCopy, kCopyNt, copy_generic<true>},
    {"triad", Isa::kAvx512, Work::kTriad, kTriad, triad_avx512<false>},
    {"triad", Isa::kAvx2, Work::kTriad, kTriad, triad_avx2<false>},
    {"triad_nt", Isa::kAvx512, Work::kTriad, kTriadNt, triad_avx512<true>},
    {"triad_nt", Isa::kAvx2, Work::kTriad, kTriadNt, triad_avx2<true>},
    {"triad_nt", Isa::kGeneric, Work::kTriad, kTriadNt, triad_generic<true>},
#elif defined(__aarch64__)
    {"write", Isa::kNeon, Work::kWrite, kWrite, write_neon<false>},
    {"write_nt", Isa::kNeon, Work::kWrite, kWriteNt, write_neon<true>},
    {"copy", Isa::kNeon, Work::kCopy, kCopy, copy_neon<false>},
    {"copy_nt", Isa::kNeon, Work::kCopy, kCopyNt, copy_neon<true>},
    {"triad", Isa::kNeon, Work::kTriad, kTriad, triad_neon<false>},
    {"triad_nt", Isa::kNeon, Work::kTriad, kTriadNt, triad_neon<true>},
#endif
    // Elsewhere than on x86-64 portable code has no non-temporal store, so none is offered.
    {"write", Isa::kGeneric, Work::kWrite, kWrite, write_generic<false>},
    {"copy", Isa::kGeneric, Work::kCopy, kCopy, copy_generic<false>},
    {"triad", Isa::kGeneric, Work::kTriad, kTriad, triad_generic<false>},
};

}  // namespace

std::span<const Kernel> store_kernels() { return kStoreKernels; }

}  // namespace k3gate
