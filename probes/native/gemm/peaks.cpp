#include "peaks.hpp"

#include <utility>
#include <vector>

#include "tiles.hpp"

namespace k3gate::gemm {
namespace {

// Sums that wait for nobody but themselves: more of them than latency x units of any CPU.
constexpr int kSums = 12;

#if defined(__x86_64__)

// Instructions as assembly on named registers, for no compiler to merge, reorder or leave out.
#define K3_TWELVE(instruction)                                                                             \
  instruction(0) instruction(1) instruction(2) instruction(3) instruction(4) instruction(5) instruction(6) \
      instruction(7) instruction(8) instruction(9) instruction(10) instruction(11)

#define K3_ZMM(n) "zmm" #n
#define K3_CLEAR_ZMM(n) "vpxord %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n\t"
#define K3_CLEAR_YMM(n) "vpxor %%ymm" #n ", %%ymm" #n ", %%ymm" #n "\n\t"
#define K3_DPBUSD_ZMM(n) "vpdpbusd %%zmm15, %%zmm14, %%zmm" #n "\n\t"
#define K3_DPBF16_ZMM(n) "vdpbf16ps %%zmm15, %%zmm14, %%zmm" #n "\n\t"
#define K3_FMA_ZMM(n) "vfmadd231ps %%zmm15, %%zmm14, %%zmm" #n "\n\t"
#define K3_DPBUSD_YMM(n) "%{vex%} vpdpbusd %%ymm15, %%ymm14, %%ymm" #n "\n\t"
#define K3_FMA_YMM(n) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" #n "\n\t"
#define K3_MADD_YMM(n)                                                                                     \
  "vpmaddubsw %%ymm15, %%ymm14, %%ymm12\n\tvpmaddwd %%ymm13, %%ymm12, %%ymm12\n\tvpaddd %%ymm12, %%ymm" #n \
  ", %%ymm" #n "\n\t"
#define K3_MADD_ZMM(n)                                                                                     \
  "vpmaddubsw %%zmm15, %%zmm14, %%zmm12\n\tvpmaddwd %%zmm13, %%zmm12, %%zmm12\n\tvpaddd %%zmm12, %%zmm" #n \
  ", %%zmm" #n "\n\t"

#define K3_CLOBBERS                                                                                          \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15", "cc"

// Zeros all through: no product is denormal or slow.
#define K3_PEAK_LOOP(name, clear, instruction)                                                   \
  void name(std::uint64_t turns) {                                                               \
    asm volatile(K3_TWELVE(clear) clear(12) clear(13) clear(14)                                  \
                     clear(15) "1:\n\t" K3_TWELVE(instruction) "decq %0\n\tjnz 1b\n\tvzeroupper" \
                 : "+r"(turns)                                                                   \
                 :                                                                               \
                 : K3_CLOBBERS);                                                                 \
  }

K3_PEAK_LOOP(vnni512, K3_CLEAR_ZMM, K3_DPBUSD_ZMM)
K3_PEAK_LOOP(bf16_512, K3_CLEAR_ZMM, K3_DPBF16_ZMM)
K3_PEAK_LOOP(float512, K3_CLEAR_ZMM, K3_FMA_ZMM)
K3_PEAK_LOOP(bytes512, K3_CLEAR_ZMM, K3_MADD_ZMM)
K3_PEAK_LOOP(vnni256, K3_CLEAR_YMM, K3_DPBUSD_YMM)
K3_PEAK_LOOP(bytes256, K3_CLEAR_YMM, K3_MADD_YMM)
K3_PEAK_LOOP(float256, K3_CLEAR_YMM, K3_FMA_YMM)

template <bool kBytes>
void tiles(std::uint64_t turns) {
  RealTiles::configure(kWholeTiles);
  const auto clear = []<int... T>(std::integer_sequence<int, T...>) { (RealTiles::zero<T>(), ...); };
  clear(std::make_integer_sequence<int, 8>{});
  for (; turns > 0; --turns) {
    if constexpr (kBytes) {
      RealTiles::dot_bytes<0, 4, 6>();
      RealTiles::dot_bytes<1, 4, 7>();
      RealTiles::dot_bytes<2, 5, 6>();
      RealTiles::dot_bytes<3, 5, 7>();
    } else {
      RealTiles::dot_bf16<0, 4, 6>();
      RealTiles::dot_bf16<1, 4, 7>();
      RealTiles::dot_bf16<2, 5, 6>();
      RealTiles::dot_bf16<3, 5, 7>();
    }
  }
  RealTiles::release();
}

constexpr double kTileBytes = 2.0 * 16 * 16 * 64;
constexpr double kTileWords = 2.0 * 16 * 16 * 32;

#endif

// As compilers make of it: no bound of what a core can do, only of what plain code has been seen to.
void float_generic(std::uint64_t turns) {
  volatile float seed = 0.0F;
  float sums[kSums * 8];
  for (float& sum : sums) sum = seed;
  const float factor = seed;
  for (; turns > 0; --turns) {
    for (float& sum : sums) sum = sum * factor + factor;
#if defined(__GNUC__)
    asm volatile("" : : "r"(sums) : "memory");
#endif
  }
  for (const float sum : sums) seed = seed + sum;
}

}  // namespace

std::span<const Peak> peaks() {
  static const std::vector<Peak> all = {
#if defined(__x86_64__)
      {Path::kAmxInt8, "int8", 4 * kTileBytes, kTileBytes, tiles<true>},
      {Path::kAmxBf16, "bf16", 4 * kTileWords, kTileWords, tiles<false>},
      {Path::kAvx512Vnni, "int8", kSums * 128.0, 128, vnni512},
      {Path::kAvx512Bf16, "bf16", kSums * 64.0, 64, bf16_512},
      {Path::kAvx512, "float32", kSums * 32.0, 32, float512},
      {Path::kAvx512, "int8", kSums * 128.0, 128.0 / 3, bytes512},
      {Path::kAvxVnni, "int8", kSums * 64.0, 64, vnni256},
      {Path::kAvx2, "int8", kSums * 64.0, 64.0 / 3, bytes256},
      {Path::kAvx2, "float32", kSums * 16.0, 16, float256},
#endif
      {Path::kGeneric, "float32", kSums * 8 * 2.0, 2, float_generic},
  };
  return all;
}

const Peak* find_peak(std::string_view path, std::string_view type) {
  for (const Peak& peak : peaks()) {
    if (name_of(peak.path) == path && peak.type == type) return &peak;
  }
  return nullptr;
}

}  // namespace k3gate::gemm
