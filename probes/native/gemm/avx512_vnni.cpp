// AVX-512 VNNI: vpdpbusd, 64 products of an unsigned and a signed byte an instruction.
#include "gemm.hpp"
#include "rounding.hpp"

#if defined(__x86_64__)
#include <array>
#include <type_traits>

#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "activations.inl"
#include "codes.inl"
#include "lanes512.inl"
#include "rows.inl"

struct Lanes : Lanes512 {
  // Activations are unsigned, weights signed: the offset comes off by the sum of each row's weights.
  static constexpr int kOffset = 128;
  static constexpr std::size_t kTokens = 6;

  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    // Not the intrinsic: with it GCC 12 keeps sums in memory, which halves the speed.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(activations), "v"(weights));
    return sum;
  }
};

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAvx512Vnni, Activations::kInt8, run_mxfp4<Lanes>},
    Variant{Format::kInt8, Path::kAvx512Vnni, Activations::kInt8, run_int8<Lanes>},
};

}  // namespace

std::span<const Variant> family::avx512_vnni() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::avx512_vnni() { return {}; }
}  // namespace k3gate::gemm

#endif
