// Bytes in registers of 512 bits: all but the multiplication. Included with K3_LANES set.
#pragma once

// The sums over the 16 lanes of each of four registers.
K3_LANES __m128i total4_of(const __m512i* sums) {
  const __m512i a =
      _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
  const __m512i b =
      _mm512_add_epi32(_mm512_unpacklo_epi32(sums[2], sums[3]), _mm512_unpackhi_epi32(sums[2], sums[3]));
  const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i d = _mm256_add_epi32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
}

K3_LANES __m128 total4_of(const __m512* sums) {
  const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]), _mm512_unpackhi_ps(sums[0], sums[1]));
  const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(sums[2], sums[3]), _mm512_unpackhi_ps(sums[2], sums[3]));
  const __m512 c =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))));
  const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
  return _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
}

struct Lanes512 {
  using Vector = __m512i;
  using Input = __m512i;
  using Sum = __m512i;
  using Element = std::int32_t;
  static constexpr std::size_t kBytes = 64;
  static constexpr std::size_t kInputBytes = 64;  // of activations that go with one block
  static constexpr std::size_t kMostDirect = 4;
  static constexpr int kRowsOfOne = 16;
  static constexpr std::size_t kPrefetch = 8 * kCodeBlockBytes;

  K3_LANES Vector load(const void* from) { return _mm512_loadu_si512(from); }
  K3_LANES void store(void* to, Vector value) { _mm512_storeu_si512(to, value); }
  K3_LANES Input input(const std::byte* from, std::size_t) { return _mm512_loadu_si512(from); }
  K3_LANES Sum none() { return _mm512_setzero_si512(); }
  K3_LANES Vector low(Vector codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
  K3_LANES Vector high(Vector codes) {
    return _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi8(15));
  }
  K3_LANES Vector look_up(Vector table, Vector nibbles) { return _mm512_shuffle_epi8(table, nibbles); }
  K3_LANES void total4(const Sum* sums, Element* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), total4_of(sums));
  }
};
