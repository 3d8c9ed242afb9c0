// AVX-512 BF16: vdpbf16ps, 32 products an instruction, summed in float32.
#include "gemm.hpp"
#include "rounding.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>

#include "decode512.hpp"
#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "bf16.inl"
#include "lanes512.inl"

struct Lanes : Floats512 {
  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights),
                            reinterpret_cast<__m512bh>(activations));
  }

  K3_TARGET static void prepare(const std::uint16_t* from, std::size_t depth, std::size_t columns,
                                std::byte* to) {
    std::memcpy(to, from, 2 * depth);
    std::memset(to + 2 * depth, 0, 2 * (columns - depth));
  }
};

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAvx512Bf16, Activations::kBf16,
            run_mxfp4_bf16<Lanes, decode_to_bf16_avx512>},
    Variant{Format::kBf16, Path::kAvx512Bf16, Activations::kBf16, run_bf16<Lanes>},
};

}  // namespace

std::span<const Variant> family::avx512_bf16() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::avx512_bf16() { return {}; }
}  // namespace k3gate::gemm

#endif
