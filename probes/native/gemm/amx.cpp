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

}  // namespace

K3_TARGET void Avx512Help::prepare_rows(bool bytes, const Call& call, std::size_t row_bytes, std::byte* to) {
  if (!bytes) {
    PlainHelp::prepare_rows(bytes, call, row_bytes, to);
    return;
  }
  round_activations(call.activations, call.tokens, call.weights->depth, row_bytes, 0,
                    reinterpret_cast<std::uint8_t*>(to), call.workspace->scales());
}

K3_TARGET void Avx512Help::decode(Decoding decoding, const std::byte* packed, std::size_t blocks,
                                  std::byte* to) {
  if (decoding == Decoding::kBytes) {
    decode_codes<Lanes>(packed, blocks, to);
  } else {
    decode_to_bf16_avx512(packed, blocks, to);
  }
}

K3_TARGET void Avx512Help::finish(bool bytes, const std::byte* sums, const TileRun& run,
                                  std::size_t token_tile, const float* token_scales, const Call& call) {
  const std::size_t rows_left = call.weights->rows - run.first_row;
  const std::size_t rows = rows_left < kTileRows ? rows_left : kTileRows;
  const std::size_t first_token = token_tile * kTileRows;
  const std::size_t tokens = std::min(kTileRows, call.tokens - first_token);
  const __m512 row_scales =
      run.row_scales == nullptr ? _mm512_set1_ps(1.0F) : _mm512_loadu_ps(run.row_scales);
  float* to = call.output + first_token * call.weights->rows + run.first_row;
  for (std::size_t j = 0; j < tokens; ++j, to += call.weights->rows, sums += kLineBytes) {
    const __m512i words = _mm512_load_si512(sums);
    __m512 value = bytes ? _mm512_cvtepi32_ps(words) : _mm512_castsi512_ps(words);
    value = _mm512_mul_ps(value, row_scales);
    if (token_scales != nullptr) value = _mm512_mul_ps(value, _mm512_set1_ps(token_scales[first_token + j]));
    if (run.add) value = _mm512_add_ps(value, Lanes::load_some(to, rows));
    Lanes::store_some(to, value, rows);
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
