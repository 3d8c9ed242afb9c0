#include "vectors.hpp"

#include <bit>

#include "shape.hpp"

namespace k3gate::decode {
namespace {

#pragma GCC diagnostic ignored "-Wpsabi"

namespace generic {
#define K3_TARGET
#define K3_VECTOR 16
#include "vectors.inl"
#undef K3_TARGET
#undef K3_VECTOR
}  // namespace generic

#if defined(__x86_64__)
namespace avx2 {
#define K3_TARGET __attribute__((target("avx2,fma")))
#define K3_VECTOR 32
#include "vectors.inl"
#undef K3_TARGET
#undef K3_VECTOR
}  // namespace avx2

namespace avx512 {
#define K3_TARGET \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define K3_VECTOR 64
#include "vectors.inl"
#undef K3_TARGET
#undef K3_VECTOR
}  // namespace avx512
#endif

}  // namespace

const Vectors& vectors([[maybe_unused]] gemm::Path path) {
#if defined(__x86_64__)
  const Isa base = gemm::base_of(path);
  if (base == Isa::kAvx512) return avx512::kVectors;
  if (base == Isa::kAvx2) return avx2::kVectors;
#endif
  return generic::kVectors;
}

}  // namespace k3gate::decode
