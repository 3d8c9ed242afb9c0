// AVX-512 without VNNI: bytes by vpmaddubsw and vpmaddwd, BF16 by float32.
#include "gemm.hpp"
#include "rounding.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>

#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "bf16.inl"
#include "codes.inl"
#include "lanes512.inl"
#include "q8_0.inl"

struct ByteLanes : Lanes512 {
  static constexpr std::size_t kTokens = 5;
  static constexpr std::size_t kMostDirect = 1;

  // |w| x (a with the sign of w): two products stay within 16 bits, as |w| <= 128 and |a| <= 127.
  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    const Input turned =
        _mm512_mask_sub_epi8(activations, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), activations);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(weights), turned);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  K3_LANES Sum dot_raised(Sum sum, Vector raised, Input activations) {
    return dot(sum, _mm512_xor_si512(raised, _mm512_set1_epi8(-128)), activations);
  }
};

struct FloatLanes : Floats512 {
  struct Input {
    __m512 even;
    __m512 odd;
  };
  static constexpr std::size_t kWordOfToken = 8;
  static constexpr std::size_t kTokens = 5;

  K3_LANES Input input(const std::byte* from) {
    const auto* const values = reinterpret_cast<const float*>(from);
    return {_mm512_set1_ps(values[0]), _mm512_set1_ps(values[1])};
  }
  K3_LANES Sum dot(Sum sum, Vector weights, Input activations) {
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(weights, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(weights, _mm512_set1_epi32(-65536)));
    return _mm512_fmadd_ps(odd, activations.odd, _mm512_fmadd_ps(even, activations.even, sum));
  }

  K3_TARGET static void prepare(const std::uint16_t* from, std::size_t depth, std::size_t columns,
                                std::byte* to) {
    prepare_floats(from, depth, columns, to);
  }
};

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAvx512, Activations::kInt8, run_mxfp4<ByteLanes>},
    Variant{Format::kInt8, Path::kAvx512, Activations::kInt8, run_int8<ByteLanes>},
    Variant{Format::kQ8_0, Path::kAvx512, Activations::kInt8Groups, run_q8_0<ByteLanes, Floats512>},
    Variant{Format::kBf16, Path::kAvx512, Activations::kBf16, run_bf16<FloatLanes>},
};

}  // namespace

std::span<const Variant> family::avx512() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::avx512() { return {}; }
}  // namespace k3gate::gemm

#endif
