#include "avx512_vbmi.hpp"

#include "rounding.hpp"

#if defined(__x86_64__)
#include <cstring>

#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "codes.inl"
#include "lanes512.inl"
#include "vbmi.inl"

struct Lanes : Vbmi<Lanes512> {
#include "vnni512.inl"
};

}  // namespace

void run_mxfp4_vbmi(const Call& call) { run_mxfp4<Lanes>(call); }

}  // namespace k3gate::gemm

#endif
