// Tile operations: those of the CPU (AMX), and a model of them in plain C++ that runs anywhere and serves
// tests alone.
//
// Both give a class with
//   static void configure(const TileConfig&), release(), zero<T>(), load<T>(from, stride), store<T>(to,
//   stride) dot_bytes<C, A, B>()   C[m][n] += sum of A[m][4k + i] * B[k][4n + i], signed bytes to int32,
//   wrapping dot_bf16<C, A, B>()    C[m][n] += sum of A[m][2k + i] * B[k][2n + i], BF16 to float32
// Source: Intel SDM volume 2, LDTILECFG, TILELOADD, TDPBSSD, TDPBF16PS.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace k3gate::gemm {

// What LDTILECFG loads: 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};  // of tiles 0 to 7; the rest must be 0
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// All eight tiles with 16 rows of 64 bytes.
constexpr TileConfig whole_tiles() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  return config;
}

inline constexpr TileConfig kWholeTiles = whole_tiles();

#if defined(__x86_64__)

// Written as assembly: intrinsics of GCC take a tile's number as a literal alone.
class RealTiles {
 public:
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int T>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <int T>
  static void load(const void* from, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void store(void* to, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  static void dot_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

#endif

// One set of tiles per thread. Throws std::logic_error where the CPU would fault.
class ModelTiles {
 public:
  static void configure(const TileConfig& config);
  static void release();
  template <int T>
  static void zero() {
    zero_tile(T);
  }
  template <int T>
  static void load(const void* from, std::size_t stride) {
    load_tile(T, from, stride);
  }
  template <int T>
  static void store(void* to, std::size_t stride) {
    store_tile(T, to, stride);
  }
  template <int C, int A, int B>
  static void dot_bytes() {
    dot_bytes(C, A, B);
  }
  template <int C, int A, int B>
  static void dot_bf16() {
    dot_bf16(C, A, B);
  }

  static void zero_tile(int tile);
  static void load_tile(int tile, const void* from, std::size_t stride);
  static void store_tile(int tile, void* to, std::size_t stride);
  static void dot_bytes(int sum, int first, int second);
  static void dot_bf16(int sum, int first, int second);
};

}  // namespace k3gate::gemm
