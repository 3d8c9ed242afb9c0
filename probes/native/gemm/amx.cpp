// AMX: the tile products over the CPU's tiles.
#include "gemm.hpp"
#include "rounding.hpp"
#include "tile_help.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>
#include <type_traits>

#include "decode512.hpp"
#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "activations.inl"
#include "codes.inl"
#include "lanes512.inl"
#include "rows.inl"

// 16 rows of 16 words of 32 bits, turned.
K3_LANES void transpose(__m512i (&rows)[16]) {
  __m512i a[16];
  __m512i b[16];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
    a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
    a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
    a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd);
    rows[4 + i] = _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0x88);
    rows[12 + i] = _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0xdd);
  }
}

}  // namespace

K3_TARGET void Avx512Help::prepare_rows(bool bytes, const Call& call, std::size_t row_bytes, std::byte* to) {
  if (!bytes) {
    PlainHelp::prepare_rows(bytes, call, row_bytes, to);
    return;
  }
  round_activations(call.activations, call.tokens, call.weights->depth, row_bytes, 0,
                    reinterpret_cast<std::uint8_t*>(to), call.workspace->scales());
}

K3_TARGET void Avx512Help::rearrange(const std::byte* from, std::size_t row_bytes, std::size_t rows,
                                     std::byte* to) {
  __m512i words[16];
  for (std::size_t row = 0; row < kTileRows; ++row)
    words[row] = row < rows ? _mm512_loadu_si512(from + row * row_bytes) : _mm512_setzero_si512();
  transpose(words);
  for (std::size_t row = 0; row < kTileRows; ++row) _mm512_store_si512(to + row * kRowBytes, words[row]);
}

K3_TARGET void Avx512Help::decode(Decoding decoding, const std::byte* packed, std::size_t blocks,
                                  std::byte* to) {
  if (decoding == Decoding::kBytes) {
    decode_codes<Lanes512>(packed, blocks, to);
  } else {
    decode_to_bf16_avx512(packed, blocks, to);
  }
}

K3_TARGET void Avx512Help::finish(bool bytes, const std::byte* sums, const TileRun& run,
                                  std::size_t token_tile, const float* token_scales, const Call& call) {
  const std::size_t rows_left = call.weights->rows - run.first_row;
  const std::size_t first_token = token_tile * kTileRows;
  const std::size_t tokens = std::min(kTileRows, call.tokens - first_token);
  const auto mask = static_cast<__mmask16>(rows_left < kTileRows ? (1U << rows_left) - 1 : 0xffffU);
  __m512i words[16];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kTileRows; ++i) words[i] = _mm512_load_si512(sums + i * kRowBytes);
  transpose(words);
  const __m512 row_scales =
      run.row_scales == nullptr ? _mm512_set1_ps(1.0F) : _mm512_loadu_ps(run.row_scales);
#pragma GCC unroll 16
  for (std::size_t j = 0; j < kTileRows; ++j) {
    if (j >= tokens) break;
    __m512 value = bytes ? _mm512_cvtepi32_ps(words[j]) : _mm512_castsi512_ps(words[j]);
    value = _mm512_mul_ps(value, row_scales);
    if (token_scales != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(token_scales[first_token + j]));
    float* const to = call.output + (first_token + j) * call.weights->rows + run.first_row;
    if (run.add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
    _mm512_mask_storeu_ps(to, mask, value);
  }
}

namespace {

void run_int8_tiles(const Call& call) { run_tiled<RealTiles, Avx512Help>(call, Path::kAmxInt8); }
void run_bf16_tiles(const Call& call) { run_tiled<RealTiles, Avx512Help>(call, Path::kAmxBf16); }

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kAmxInt8, Activations::kInt8, run_int8_tiles},
    Variant{Format::kInt8, Path::kAmxInt8, Activations::kInt8, run_int8_tiles},
    Variant{Format::kMxfp4, Path::kAmxBf16, Activations::kBf16, run_bf16_tiles},
    Variant{Format::kBf16, Path::kAmxBf16, Activations::kBf16, run_bf16_tiles},
};

}  // namespace

std::span<const Variant> family::amx() { return kVariants; }

}  // namespace k3gate::gemm

#else

namespace k3gate::gemm {
std::span<const Variant> family::amx() { return {}; }
}  // namespace k3gate::gemm

#endif
