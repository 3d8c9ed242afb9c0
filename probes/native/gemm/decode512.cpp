#include "decode512.hpp"

#if defined(__x86_64__)
#include <cstdint>

#include "code_words.hpp"
#include "intrinsics.hpp"
#include "weights.hpp"

namespace k3gate::gemm {

__attribute__((target("avx512f,avx512bw"))) void decode_to_bf16_avx512(const std::byte* blocks,
                                                                       std::size_t count, std::byte* to) {
  // Whole numbers below 16 by a permutation of words; a shift is added to the exponent of what is not zero.
  const __m512i numbers = _mm512_load_si512(code_words());
  const __m512i places = _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b,
                                          0x0a0a0a0a, 0x09090909, 0x08080808, 0x07070707, 0x06060606,
                                          0x05050505, 0x04040404, 0x03030303, 0x02020202, 0x01010101, 0);
  // Of the four bytes of each row the first or the last two, as words.
  const __m512i pairs[2] = {
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1)),
      _mm512_broadcast_i32x4(_mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1))};
  for (; count > 0; --count, blocks += kCodeBlockBytes, to += kGroupsOfBlock * kBlockBytes) {
    for (std::size_t group = 0; group < kGroupsOfBlock; ++group) {
      const __m512i shifts = _mm512_shuffle_epi8(
          _mm512_broadcast_i32x4(
              _mm_load_si128(reinterpret_cast<const __m128i*>(blocks + kBlockBytes + group * kTileRows))),
          places);
      const __m512i exponents = _mm512_slli_epi16(_mm512_and_si512(shifts, _mm512_set1_epi16(0xf0)), 3);
      for (std::size_t line = 0; line < kLines / 2; ++line) {
        __m512i codes = _mm512_load_si512(blocks + (group % 2 * kLines / 2 + line) * kLineBytes);
        if (group >= 2) codes = _mm512_srli_epi16(codes, 4);
        codes = _mm512_and_si512(codes, _mm512_set1_epi8(15));
        for (std::size_t pair = 0; pair < 2; ++pair) {
          const __m512i words = _mm512_shuffle_epi8(codes, pairs[pair]);
          const __m512i values = _mm512_permutexvar_epi16(words, numbers);
          const __mmask32 nonzero = _mm512_test_epi16_mask(words, _mm512_set1_epi16(7));
          _mm512_store_si512(to + group * kBlockBytes + (2 * line + pair) * kLineBytes,
                             _mm512_mask_add_epi16(values, nonzero, values, exponents));
        }
      }
    }
  }
}

}  // namespace k3gate::gemm

#endif
