// AVX-VNNI: vpdpbusd in registers of 256 bits, as client CPUs without AVX-512 have it.
#include "gemm.hpp"
#include "rounding.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>

#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "codes.inl"
#include "lanes256.inl"
#include "q8_0.inl"

struct Lanes : Lanes256 {
  // As for AVX-512 VNNI.
  static constexpr int kOffset = 128;
  static constexpr std::size_t kTokens = 5;

  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    return _mm256_dpbusd_avx_epi32(sum, activations, weights);
  }

  static constexpr int kStart = -128;

  K3_LANES Sum dot_raised(Sum sum, Vector raised, Input activations) {
    return _mm256_dpbusd_avx_epi32(sum, raised, activations);
  }
};

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAvxVnni, Activations::kInt8, run_mxfp4<Lanes>},
    Variant{Format::kInt8, Path::kAvxVnni, Activations::kInt8, run_int8<Lanes>},
    Variant{Format::kQ8_0, Path::kAvxVnni, Activations::kInt8Groups, run_q8_0<Lanes, Floats256>},
};

}  // namespace

std::span<const Variant> family::avx_vnni() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::avx_vnni() { return {}; }
}  // namespace k3gate::gemm

#endif
