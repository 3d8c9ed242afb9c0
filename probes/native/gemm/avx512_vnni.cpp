// AVX-512 VNNI: vpdpbusd, 64 products of an unsigned and a signed byte an instruction.
#include "avx512_vbmi.hpp"
#include "gemm.hpp"
#include "rounding.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>

#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "codes.inl"
#include "lanes512.inl"
#include "q8_0.inl"

struct Lanes : Lanes512 {
#include "vnni512.inl"
};

void run_mxfp4_best(const Call& call) {
  static const bool vbmi = cpu_flags().avx512_vbmi;
  vbmi ? run_mxfp4_vbmi(call) : run_mxfp4<Lanes>(call);
}

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAvx512Vnni, Activations::kInt8, run_mxfp4_best},
    Variant{Format::kInt8, Path::kAvx512Vnni, Activations::kInt8, run_int8<Lanes>},
    Variant{Format::kQ8_0, Path::kAvx512Vnni, Activations::kInt8Groups, run_q8_0<Lanes, Floats512>},
};

}  // namespace

std::span<const Variant> family::avx512_vnni() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::avx512_vnni() { return {}; }
}  // namespace k3gate::gemm

#endif
