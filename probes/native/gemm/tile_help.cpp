#include "tile_help.hpp"

#include <cstring>
#include <vector>

#include "code_words.hpp"
#include "rounding.hpp"

#define K3_TARGET

namespace k3gate::gemm {
namespace {

#include "activations.inl"

}  // namespace

void PlainHelp::prepare_blocks(bool bytes, const Call& call, std::size_t blocks, std::byte* to) {
  const std::size_t depth = call.weights->depth;
  std::vector<std::byte> row(blocks * kRowBytes);
  for (std::size_t token = 0; token < call.tokens; ++token) {
    const std::uint16_t* const from = call.activations + token * depth;
    if (bytes) {
      round_activations(from, 1, depth, row.size(), 0, reinterpret_cast<std::uint8_t*>(row.data()),
                        call.workspace->scales() + token);
    } else {
      std::memcpy(row.data(), from, 2 * depth);
    }
    std::byte* const first = to + token / kTileRows * blocks * kBlockBytes + token % kTileRows * kLineBytes;
    for (std::size_t block = 0; block < blocks; ++block)
      std::memcpy(first + block * kBlockBytes, row.data() + block * kRowBytes, kRowBytes);
  }
}

void PlainHelp::decode(Decoding decoding, const std::byte* packed, std::size_t blocks, std::byte* to) {
  const bool bytes = decoding == Decoding::kBytes;
  for (std::size_t block = 0; block < blocks; ++block, packed += kCodeBlockBytes) {
    for (std::size_t row = 0; row < kTileRows; ++row) {
      for (std::size_t k = 0; k < kCodeDepth; ++k) {
        const std::size_t inside = k % kRowBytes;
        const auto pair = std::to_integer<unsigned>(
            packed[inside / kWordBytes * kLineBytes + row * kWordBytes + inside % kWordBytes]);
        const unsigned code = k < kRowBytes ? pair & 15 : pair >> 4;
        const auto shift = std::to_integer<std::size_t>(packed[kBlockBytes + k / kGroup * kTileRows + row]);
        if (bytes) {
          to[k / kWordBytes * kLineBytes + row * kWordBytes + k % kWordBytes] =
              static_cast<std::byte>(kCodeTable.values[shift + code]);
        } else {
          std::memcpy(to + k / 2 * kLineBytes + row * kWordBytes + k % 2 * 2,
                      code_words() + 32 * (shift >> 4) + code, 2);
        }
      }
    }
    to += (bytes ? 2 : 4) * kBlockBytes;
  }
}

void PlainHelp::finish(bool bytes, const std::byte* sums, const TileRun& run, std::size_t token_tile,
                       const float* token_scales, const Call& call) {
  for (std::size_t i = 0; i < kTileRows && run.first_row + i < call.weights->rows; ++i) {
    for (std::size_t j = 0; j < kTileRows && token_tile * kTileRows + j < call.tokens; ++j) {
      const std::size_t token = token_tile * kTileRows + j;
      std::uint32_t bits = 0;
      std::memcpy(&bits, sums + j * kLineBytes + i * sizeof bits, sizeof bits);
      float value = bytes ? static_cast<float>(static_cast<std::int32_t>(bits)) : std::bit_cast<float>(bits);
      if (run.row_scales != nullptr) value *= run.row_scales[i];
      if (token_scales != nullptr) value *= token_scales[token];
      float& to = call.output[token * call.weights->rows + run.first_row + i];
      to = run.add ? to + value : value;
    }
  }
}

void run_modelled(const Call& call, Path path) { run_tiled<ModelTiles, PlainHelp>(call, path); }

}  // namespace k3gate::gemm
