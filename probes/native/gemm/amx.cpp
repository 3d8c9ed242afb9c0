// AMX: the tile products over the CPU's tiles.
#include "gemm.hpp"
#include "rounding.hpp"
#include "tile_help.hpp"

#if defined(__x86_64__)
#include <array>
#include <cstring>

#include "decode512.hpp"
#include "intrinsics.hpp"

#define K3_TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))
#define K3_LANES K3_TARGET static inline __attribute__((always_inline))

namespace k3gate::gemm {
namespace {

#include "codes.inl"
#include "lanes512.inl"
#include "vbmi.inl"

using Lanes = Vbmi<Lanes512>;

constexpr std::size_t kLargeOutput = std::size_t{1} << 20;

// Up to 64 BF16 numbers as bytes, the rest of a line zero; `count` is a multiple of 32.
K3_TARGET __m512i round_line(const std::uint16_t* from, std::size_t count, __m512 factor) {
  __m128i parts[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const __m256i words = 16 * i < count ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16 * i))
                                         : _mm256_setzero_si256();
    const __m512 values = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    parts[i] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(values, factor)));
  }
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(parts[0]), parts[1], 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(parts[2]), parts[3], 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The largest magnitude of a token. The depth is a multiple of 32.
K3_TARGET float largest_of(const std::uint16_t* from, std::size_t depth) {
  __m512i most = _mm512_setzero_si512();
  for (std::size_t k = 0; k < depth; k += 32)
    most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(from + k), _mm512_set1_epi16(0x7fff)));
  most = _mm512_max_epu32(_mm512_srli_epi32(most, 16), _mm512_and_si512(most, _mm512_set1_epi32(0xffff)));
  return from_bf16(static_cast<std::uint16_t>(_mm512_reduce_max_epu32(most)));
}

}  // namespace

// Block after block of 16 tokens, so that what is written lies together.
K3_TARGET void Avx512Help::prepare_blocks(bool bytes, const Call& call, std::size_t blocks, std::byte* to) {
  const std::size_t depth = call.weights->depth;
  const std::size_t columns = bytes ? kRowBytes : kRowBytes / 2;
  float* const scales = call.workspace->scales();
  for (std::size_t first = 0; first < call.tokens; first += kTileRows, to += blocks * kBlockBytes) {
    const std::size_t tokens = std::min(kTileRows, call.tokens - first);
    const std::uint16_t* const from = call.activations + first * depth;
    float factors[kTileRows] = {};
    for (std::size_t j = 0; bytes && j < tokens; ++j) {
      const float largest = largest_of(from + j * depth, depth);
      const bool zero = largest < kLeastActivation;
      factors[j] = zero ? 0.0F : 127.0F / largest;
      scales[first + j] = zero ? 0.0F : largest / 127.0F;
    }
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t done = block * columns;
      const std::size_t left = done < depth ? depth - done : 0;
      for (std::size_t j = 0; j < tokens; ++j) {
        __m512i line = _mm512_setzero_si512();
        if (left > 0)
          line = bytes ? round_line(from + j * depth + done, left, _mm512_set1_ps(factors[j]))
                       : _mm512_loadu_si512(from + j * depth + done);
        _mm512_store_si512(to + block * kBlockBytes + j * kLineBytes, line);
      }
    }
  }
}

K3_TARGET void Avx512Help::decode(Decoding decoding, const std::byte* packed, std::size_t blocks,
                                  std::byte* to) {
  if (decoding == Decoding::kBytes) {
    decode_codes<Lanes>(packed, blocks, to);
  } else {
    decode_to_bf16_avx512(packed, blocks, to);
  }
}

K3_TARGET void Avx512Help::complete() { _mm_sfence(); }

K3_TARGET void Avx512Help::finish(bool bytes, const std::byte* sums, const TileRun& run,
                                  std::size_t token_tile, const float* token_scales, const Call& call) {
  const std::size_t rows_left = call.weights->rows - run.first_row;
  const std::size_t rows = rows_left < kTileRows ? rows_left : kTileRows;
  const std::size_t first_token = token_tile * kTileRows;
  const std::size_t tokens = std::min(kTileRows, call.tokens - first_token);
  const __m512 row_scales =
      run.row_scales == nullptr ? _mm512_set1_ps(1.0F) : _mm512_loadu_ps(run.row_scales);
  // Whole lines of an output that the second cache would not hold are not read first.
  const bool whole =
      call.weights->rows % kTileRows == 0 && reinterpret_cast<std::uintptr_t>(call.output) % kLineBytes == 0;
  const bool past_caches =
      whole && !run.add && call.tokens * call.weights->rows * sizeof(float) > kLargeOutput;
  float* to = call.output + first_token * call.weights->rows + run.first_row;
  for (std::size_t j = 0; j < tokens; ++j, to += call.weights->rows, sums += kLineBytes) {
    const __m512i words = _mm512_load_si512(sums);
    __m512 value = bytes ? _mm512_cvtepi32_ps(words) : _mm512_castsi512_ps(words);
    value = _mm512_mul_ps(value, row_scales);
    if (token_scales != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(token_scales[first_token + j]));
    if (run.add) value = _mm512_add_ps(value, Lanes::load_some(to, rows));
    if (past_caches) {
      _mm512_stream_ps(to, value);
    } else {
      Lanes::store_some(to, value, rows);
    }
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
