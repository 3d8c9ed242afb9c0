#include <bit>
#include <cmath>
#include <stdexcept>

#include "rounding.hpp"
#include "tiles.hpp"

namespace k3gate::gemm {
namespace {

constexpr int kTiles = 8;
constexpr std::size_t kMostRows = 16;
constexpr std::size_t kMostBytes = 64;

struct Tile {
  alignas(64) std::uint8_t bytes[kMostRows][kMostBytes] = {};
};

struct State {
  bool configured = false;
  TileConfig config;
  Tile tiles[kTiles];
};

State& state() {
  thread_local State mine;
  return mine;
}

// What the CPU raises as #UD or #GP.
void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

Tile& tile_of(int index) {
  require(state().configured, "no tiles are configured");
  return state().tiles[index];
}

std::size_t rows_of(int tile) { return state().config.rows[tile]; }
std::size_t bytes_of(int tile) { return state().config.row_bytes[tile]; }

template <class T>
T element(const Tile& tile, std::size_t row, std::size_t index) {
  T value;
  std::memcpy(&value, &tile.bytes[row][index * sizeof(T)], sizeof(T));
  return value;
}

template <class T>
void set_element(Tile& tile, std::size_t row, std::size_t index, T value) {
  std::memcpy(&tile.bytes[row][index * sizeof(T)], &value, sizeof(T));
}

void check_shapes(int sum, int first, int second) {
  require(sum != first && sum != second && first != second, "the three tiles must differ");
  require(rows_of(sum) == rows_of(first) && bytes_of(sum) == bytes_of(second) &&
              bytes_of(first) == 4 * rows_of(second),
          "the shapes of the tiles do not fit");
}

// Denormals count as zeros, in and out (DAZ, FTZ), whatever MXCSR says.
float flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0F, value) : value;
}

float widened(std::uint16_t bits) { return flushed(from_bf16(bits)); }

}  // namespace

void ModelTiles::configure(const TileConfig& config) {
  require(config.palette == 1 && config.start_row == 0, "only palette 1 is known");
  for (const std::uint8_t byte : config.reserved) require(byte == 0, "reserved bytes must be 0");
  for (int tile = 0; tile < 16; ++tile) {
    const bool used = config.rows[tile] != 0;
    require(used == (config.row_bytes[tile] != 0), "a tile has rows and bytes, or neither");
    require(config.rows[tile] <= kMostRows && config.row_bytes[tile] <= kMostBytes, "a tile is too large");
    require(tile < kTiles || !used, "there are eight tiles");
  }
  state() = State{.configured = true, .config = config, .tiles = {}};
}

void ModelTiles::release() { state() = State{}; }

void ModelTiles::zero_tile(int tile) { tile_of(tile) = Tile{}; }

void ModelTiles::load_tile(int tile, const void* from, std::size_t stride) {
  Tile& to = tile_of(tile);
  to = Tile{};
  for (std::size_t row = 0; row < rows_of(tile); ++row)
    std::memcpy(to.bytes[row], static_cast<const char*>(from) + row * stride, bytes_of(tile));
}

void ModelTiles::store_tile(int tile, void* to, std::size_t stride) {
  const Tile& from = tile_of(tile);
  for (std::size_t row = 0; row < rows_of(tile); ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, from.bytes[row], bytes_of(tile));
}

void ModelTiles::dot_bytes(int sum, int first, int second) {
  Tile& c = tile_of(sum);
  const Tile& a = tile_of(first);
  const Tile& b = tile_of(second);
  check_shapes(sum, first, second);
  for (std::size_t m = 0; m < rows_of(sum); ++m) {
    for (std::size_t n = 0; n < bytes_of(sum) / 4; ++n) {
      auto total = element<std::uint32_t>(c, m, n);
      for (std::size_t k = 0; k < bytes_of(first) / 4; ++k) {
        for (std::size_t i = 0; i < 4; ++i) {
          const int product = element<std::int8_t>(a, m, 4 * k + i) * element<std::int8_t>(b, k, 4 * n + i);
          total += static_cast<std::uint32_t>(product);
        }
      }
      set_element(c, m, n, total);
    }
  }
}

void ModelTiles::dot_bf16(int sum, int first, int second) {
  Tile& c = tile_of(sum);
  const Tile& a = tile_of(first);
  const Tile& b = tile_of(second);
  check_shapes(sum, first, second);
  for (std::size_t m = 0; m < rows_of(sum); ++m) {
    for (std::size_t n = 0; n < bytes_of(sum) / 4; ++n) {
      // The even and the odd products are summed apart, fused and rounded to nearest each time.
      float even = 0;
      float odd = 0;
      for (std::size_t k = 0; k < bytes_of(first) / 4; ++k) {
        const auto fused = [&](std::size_t i, float to) {
          return flushed(std::fma(widened(element<std::uint16_t>(a, m, 2 * k + i)),
                                  widened(element<std::uint16_t>(b, k, 2 * n + i)), to));
        };
        even = fused(0, even);
        odd = fused(1, odd);
      }
      const float both = flushed(even + odd);
      set_element(c, m, n, flushed(flushed(element<float>(c, m, n)) + both));
    }
  }
}

}  // namespace k3gate::gemm
