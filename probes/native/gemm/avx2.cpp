// AVX2 and FMA: bytes by vpmaddubsw and vpmaddwd, BF16 by float32.
#include "gemm.hpp"
#include "rounding.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>

#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,f16c")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "bf16.inl"
#include "codes.inl"
#include "lanes256.inl"
#include "q8_0.inl"

struct ByteLanes : Lanes256 {
  // |w| x (a with the sign of w): two products stay within 16 bits, as |w| <= 128 and |a| <= 127.
  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(activations, weights));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  K3_LANES Sum dot_raised(Sum sum, Vector raised, Input activations) {
    return dot(sum, _mm256_xor_si256(raised, _mm256_set1_epi8(-128)), activations);
  }
};

struct FloatLanes : Floats256 {
  struct Input {
    __m256 even;
    __m256 odd;
  };
  static constexpr std::size_t kWordOfToken = 8;

  K3_LANES Input input(const std::byte* from) {
    const auto* const values = reinterpret_cast<const float*>(from);
    return {_mm256_set1_ps(values[0]), _mm256_set1_ps(values[1])};
  }
  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(weights, 16));
    const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(weights, _mm256_set1_epi32(-65536)));
    return _mm256_fmadd_ps(odd, activations.odd, _mm256_fmadd_ps(even, activations.even, sum));
  }

  K3_TARGET static void prepare(const std::uint16_t* from, std::size_t depth, std::size_t columns,
                                std::byte* to) {
    prepare_floats(from, depth, columns, to);
  }
};

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAvx2, Activations::kInt8, run_mxfp4<ByteLanes>},
    Variant{Format::kInt8, Path::kAvx2, Activations::kInt8, run_int8<ByteLanes>},
    Variant{Format::kQ8_0, Path::kAvx2, Activations::kInt8Groups, run_q8_0<ByteLanes, Floats256>},
    Variant{Format::kBf16, Path::kAvx2, Activations::kBf16, run_bf16<FloatLanes>},
};

}  // namespace

std::span<const Variant> family::avx2() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::avx2() { return {}; }
}  // namespace k3gate::gemm

#endif
