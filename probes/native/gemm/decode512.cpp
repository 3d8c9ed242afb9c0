#include "decode512.hpp"

#if defined(__x86_64__)
#include <cstdint>

#include "code_words.hpp"
#include "intrinsics.hpp"
#include "weights.hpp"

namespace k3gate::gemm {

__attribute__((target("avx512f,avx512bw"))) void decode_to_bf16_avx512(const std::byte* blocks,
                                                                       std::size_t count, std::byte* to) {
  const std::uint16_t* const words = code_words();
  for (std::size_t block = 0; block < count; ++block, blocks += kCodeBlockBytes, to += 4 * kBlockBytes) {
    const auto* const places = reinterpret_cast<const std::uint16_t*>(blocks + kBlockBytes);
    for (std::size_t row = 0; row < kTileRows; ++row) {
      // A permutation of words looks at 5 bits; the table holds the 16 codes twice, so that the fifth is no
      // matter.
      for (std::size_t half = 0; half < 2; ++half) {
        const __m512i pairs = _mm512_cvtepu8_epi16(
            _mm256_load_si256(reinterpret_cast<const __m256i*>(blocks + row * kRowBytes + half * kGroup)));
        for (std::size_t nibble = 0; nibble < 2; ++nibble) {
          const std::size_t shift =
              static_cast<std::size_t>(places[2 * row + nibble]) >> (half == 0 ? 6 : 8) & 3;
          const __m512i codes = nibble == 0 ? pairs : _mm512_srli_epi16(pairs, 4);
          _mm512_store_si512(to + (2 * nibble + half) * kBlockBytes + row * kRowBytes,
                             _mm512_permutexvar_epi16(codes, _mm512_load_si512(words + 32 * shift)));
        }
      }
    }
  }
}

}  // namespace k3gate::gemm

#endif
