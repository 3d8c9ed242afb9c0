// Bytes in registers of 256 bits: all but the multiplication. Included with K3_LANES set.
#pragma once

struct Lanes256 {
  using Vector = __m256i;
  using Input = __m256i;
  using Sum = __m256i;
  using Floats = __m256;
  static constexpr std::size_t kBytes = 32;
  static constexpr int kTiles = 1;
  static constexpr std::size_t kTokens = 4;
  static constexpr bool kScaled = false;
  static constexpr std::size_t kUnitBytes = kLineBytes;
  static constexpr std::size_t kWordOfToken = 4;
  static constexpr int kOffset = 0;
  static constexpr int kStart = 0;
  static constexpr std::size_t kMostDirect = 1;

  K3_LANES Vector load(const void* from) { return _mm256_load_si256(static_cast<const __m256i*>(from)); }
  K3_LANES void store(void* to, Vector value) { _mm256_store_si256(static_cast<__m256i*>(to), value); }
  K3_LANES Input input(const std::byte* from) {
    return _mm256_set1_epi32(*reinterpret_cast<const std::int32_t*>(from));
  }
  K3_LANES Sum none() { return _mm256_setzero_si256(); }
  K3_LANES Sum load_sum(const std::byte* from) { return load(from); }
  K3_LANES void store_sum(std::byte* to, Sum sum) { store(to, sum); }
  K3_LANES Sum every_sum(std::int32_t value) { return _mm256_set1_epi32(value); }
  K3_LANES Sum add(Sum a, Sum b) { return _mm256_add_epi32(a, b); }

  // As in registers of 512 bits without VBMI.
  struct Shift {
    __m256i counts;
    __m256i offset;
  };
  K3_LANES Shift shift(const std::byte* of_rows, std::size_t part) {
    const __m128i shifts = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(of_rows + 8 * part));
    const __m256i counts = _mm256_srli_epi32(_mm256_cvtepu8_epi32(shifts), 4);
    return {counts, _mm256_sllv_epi32(_mm256_set1_epi8(kMostCode), counts)};
  }
  K3_LANES Vector decode(Vector nibbles, const Shift& shift) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i positive = _mm256_shuffle_epi8(table, nibbles);
    return _mm256_sub_epi8(_mm256_sllv_epi32(positive, shift.counts), shift.offset);
  }
  K3_LANES Vector low(Vector codes, const Shift& shift) {
    return decode(_mm256_and_si256(codes, _mm256_set1_epi8(15)), shift);
  }
  K3_LANES Vector high(Vector codes, const Shift& shift) {
    return decode(_mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi8(15)), shift);
  }

  // As in registers of 512 bits.
  template <int kOffset>
  K3_LANES Floats floats(Sum sum, const std::int32_t* weight_sums) {
    static_assert(kOffset == 0 || kOffset == 128);
    if constexpr (kOffset != 0)
      sum = _mm256_sub_epi32(
          sum, _mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight_sums)), 7));
    return _mm256_cvtepi32_ps(sum);
  }
  K3_LANES Floats every(float value) { return _mm256_set1_ps(value); }
  K3_LANES Floats load_floats(const float* from) { return _mm256_loadu_ps(from); }
  K3_LANES Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  K3_LANES Floats plus(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  K3_LANES Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  K3_LANES Floats halves(const std::byte* of_rows, std::size_t part) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(of_rows + 16 * part)));
  }
  K3_LANES __m256i first(std::size_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  K3_LANES Floats load_some(const float* from, std::size_t count) {
    return _mm256_maskload_ps(from, first(count));
  }
  K3_LANES void store_some(float* to, Floats value, std::size_t count) {
    _mm256_maskstore_ps(to, first(count), value);
  }
};

// With float32 as sums.
struct Floats256 : Lanes256 {
  using Sum = __m256;

  K3_LANES Sum none() { return _mm256_setzero_ps(); }
  K3_LANES Sum load_sum(const std::byte* from) {
    return _mm256_load_ps(reinterpret_cast<const float*>(from));
  }
  K3_LANES void store_sum(std::byte* to, Sum sum) { _mm256_store_ps(reinterpret_cast<float*>(to), sum); }
  template <int>
  K3_LANES Floats floats(Sum sum, const std::int32_t*) {
    return sum;
  }
};
