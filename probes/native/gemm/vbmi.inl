// Codes by a permutation of bytes, whose table of 64 holds every shift: two instructions a nibble. Included
// with K3_LANES set, by families whose target has AVX-512 VBMI.
#pragma once

template <class Lanes>
struct Vbmi : Lanes {
  // The bytes of each row's shift, times 16: what a nibble lacks to be an index.
  using Shift = __m512i;
  K3_LANES Shift shift(const std::byte* of_rows, std::size_t) {
    const __m512i rows = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(of_rows)));
    const __m512i places = _mm512_set_epi32(0x0f0f0f0f, 0x0e0e0e0e, 0x0d0d0d0d, 0x0c0c0c0c, 0x0b0b0b0b,
                                            0x0a0a0a0a, 0x09090909, 0x08080808, 0x07070707, 0x06060606,
                                            0x05050505, 0x04040404, 0x03030303, 0x02020202, 0x01010101, 0);
    return _mm512_shuffle_epi8(rows, places);
  }
  K3_LANES __m512i decode(__m512i codes, Shift shift) {
    constexpr int kAndOr = 0xea;  // (a and b) or c
    const __m512i places = _mm512_ternarylogic_epi32(codes, _mm512_set1_epi8(15), shift, kAndOr);
    return _mm512_permutexvar_epi8(places, _mm512_load_si512(kCodeTable.values));
  }
  K3_LANES __m512i low(__m512i codes, Shift shift) { return decode(codes, shift); }
  K3_LANES __m512i high(__m512i codes, Shift shift) { return decode(_mm512_srli_epi16(codes, 4), shift); }
};
