// Bytes in registers of 256 bits: all but the multiplication. Included with K3_LANES set.
#pragma once

// The sums over the 8 lanes of each of four registers.
K3_LANES __m128i total4_of(const __m256i* sums) {
  const __m256i a =
      _mm256_add_epi32(_mm256_unpacklo_epi32(sums[0], sums[1]), _mm256_unpackhi_epi32(sums[0], sums[1]));
  const __m256i b =
      _mm256_add_epi32(_mm256_unpacklo_epi32(sums[2], sums[3]), _mm256_unpackhi_epi32(sums[2], sums[3]));
  const __m256i c = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
  return _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

K3_LANES __m128 total4_of(const __m256* sums) {
  const __m256 a = _mm256_add_ps(_mm256_unpacklo_ps(sums[0], sums[1]), _mm256_unpackhi_ps(sums[0], sums[1]));
  const __m256 b = _mm256_add_ps(_mm256_unpacklo_ps(sums[2], sums[3]), _mm256_unpackhi_ps(sums[2], sums[3]));
  const __m256 c =
      _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))),
                    _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))));
  return _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

struct Lanes256 {
  using Vector = __m256i;
  using Input = __m256i;
  using Sum = __m256i;
  using Element = std::int32_t;
  static constexpr std::size_t kBytes = 32;
  static constexpr std::size_t kInputBytes = 64;  // of activations that go with one block
  static constexpr std::size_t kTokens = 2;
  static constexpr std::size_t kMostDirect = 1;
  static constexpr int kRowsOfOne = 8;
  static constexpr std::size_t kPrefetch = 8 * kCodeBlockBytes;

  K3_LANES Vector load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  K3_LANES void store(void* to, Vector value) { _mm256_storeu_si256(static_cast<__m256i*>(to), value); }
  K3_LANES Input input(const std::byte* from, std::size_t at) { return load(from + at * kBytes); }
  K3_LANES Sum none() { return _mm256_setzero_si256(); }
  K3_LANES Vector low(Vector codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
  K3_LANES Vector high(Vector codes) {
    return _mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15));
  }
  K3_LANES Vector look_up(Vector table, Vector nibbles) { return _mm256_shuffle_epi8(table, nibbles); }
  K3_LANES void total4(const Sum* sums, Element* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), total4_of(sums));
  }
};
