// Bytes in registers of 512 bits: all but the multiplication. Included with K3_LANES set.
#pragma once

struct Lanes512 {
  using Vector = __m512i;
  using Input = __m512i;
  using Sum = __m512i;
  using Floats = __m512;
  static constexpr std::size_t kBytes = 64;
  static constexpr int kTiles = 4;
  static constexpr std::size_t kTokens = 6;
  static constexpr bool kScaled = false;
  static constexpr std::size_t kUnitBytes = kLineBytes;
  static constexpr std::size_t kWordOfToken = 4;
  static constexpr int kOffset = 0;
  static constexpr int kStart = 0;
  static constexpr std::size_t kMostDirect = 4;

  K3_LANES Vector load(const void* from) { return _mm512_load_si512(from); }
  K3_LANES void store(void* to, Vector value) { _mm512_store_si512(to, value); }
  K3_LANES Input input(const std::byte* from) {
    return _mm512_set1_epi32(*reinterpret_cast<const std::int32_t*>(from));
  }
  K3_LANES Sum none() { return _mm512_setzero_si512(); }
  K3_LANES Sum load_sum(const std::byte* from) { return _mm512_load_si512(from); }
  K3_LANES void store_sum(std::byte* to, Sum sum) { _mm512_store_si512(to, sum); }
  K3_LANES Sum every_sum(std::int32_t value) { return _mm512_set1_epi32(value); }
  K3_LANES Sum add(Sum a, Sum b) { return _mm512_add_epi32(a, b); }

  // The codes' table has room for one shift alone, so words are shifted: of numbers that were made positive,
  // for none to reach into the next byte.
  struct Shift {
    __m512i counts;
    __m512i offset;
  };
  K3_LANES Shift shift(const std::byte* of_rows, std::size_t) {
    const __m128i shifts = _mm_load_si128(reinterpret_cast<const __m128i*>(of_rows));
    const __m512i counts = _mm512_srli_epi32(_mm512_cvtepu8_epi32(shifts), 4);
    return {counts, _mm512_sllv_epi32(_mm512_set1_epi8(kMostCode), counts)};
  }
  K3_LANES Vector decode(Vector nibbles, const Shift& shift) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i positive = _mm512_shuffle_epi8(table, nibbles);
    return _mm512_sub_epi8(_mm512_sllv_epi32(positive, shift.counts), shift.offset);
  }
  K3_LANES Vector low(Vector codes, const Shift& shift) {
    return decode(_mm512_and_si512(codes, _mm512_set1_epi8(15)), shift);
  }
  K3_LANES Vector high(Vector codes, const Shift& shift) {
    return decode(_mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi8(15)), shift);
  }

  // What `offset` times the weights adds to a sum comes off.
  template <int kOffset>
  K3_LANES Floats floats(Sum sum, const std::int32_t* weight_sums) {
    static_assert(kOffset == 0 || kOffset == 128);
    if constexpr (kOffset != 0)
      sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(_mm512_loadu_si512(weight_sums), 7));
    return _mm512_cvtepi32_ps(sum);
  }
  K3_LANES Floats every(float value) { return _mm512_set1_ps(value); }
  K3_LANES Floats load_floats(const float* from) { return _mm512_loadu_ps(from); }
  K3_LANES Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  K3_LANES Floats plus(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  K3_LANES Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  K3_LANES Floats halves(const std::byte* of_rows, std::size_t) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(of_rows)));
  }
  K3_LANES __mmask16 first(std::size_t count) { return static_cast<__mmask16>((1U << count) - 1); }
  K3_LANES Floats load_some(const float* from, std::size_t count) {
    return _mm512_maskz_loadu_ps(first(count), from);
  }
  K3_LANES void store_some(float* to, Floats value, std::size_t count) {
    _mm512_mask_storeu_ps(to, first(count), value);
  }
};

// With float32 as sums.
struct Floats512 : Lanes512 {
  using Sum = __m512;

  K3_LANES Sum none() { return _mm512_setzero_ps(); }
  K3_LANES Sum load_sum(const std::byte* from) { return _mm512_load_ps(from); }
  K3_LANES void store_sum(std::byte* to, Sum sum) { _mm512_store_ps(to, sum); }
  template <int>
  K3_LANES Floats floats(Sum sum, const std::int32_t*) {
    return sum;
  }
};
