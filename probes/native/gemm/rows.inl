// Products by rows: for each output, whole vectors along the depth are multiplied and the lanes added at the
// end. Included by each family with K3_TARGET set, within an anonymous namespace.
//
// Lanes: what a family gives of its registers.
//   Vector, Sum               registers of operands and of sums
//   kBytes                    of a Vector: 64 or 32
//   kTokens                   how many tokens' sums of 4 rows fit the registers
//   Vector load(const void*)
//   Sum none()
//   Sum dot(Sum, weights, activations)
//   void total4(const Sum*, Element*)   the sums over the lanes of four
//   Element                   float, or int32_t
#pragma once

inline constexpr int kQuad = 4;

// What the sums of a run of blocks become: sum x row scale x token scale, stored or added.
struct Finish {
  float* output;             // of the run's first row and token
  std::size_t stride;        // from token to token
  const float* row_scales;   // nullptr: 1
  const std::int32_t* sums;  // of the weights of each row, times which the activations' offset is taken off
  int offset;
  const float* token_scales;  // nullptr: 1
  bool add;
};

template <class Element>
K3_TARGET inline void finish_quad(const Finish& finish, const Element* totals, int row, float token_scale,
                                  float* to) {
  __m128 value;
  if constexpr (std::is_integral_v<Element>) {
    const auto* const sums = reinterpret_cast<const __m128i*>(finish.sums + row);
    const __m128i extra = _mm_mullo_epi32(_mm_loadu_si128(sums), _mm_set1_epi32(finish.offset));
    const __m128i total = _mm_loadu_si128(reinterpret_cast<const __m128i*>(totals + row));
    value = _mm_cvtepi32_ps(_mm_sub_epi32(total, extra));
  } else {
    value = _mm_loadu_ps(totals + row);
  }
  if (finish.row_scales != nullptr) value = _mm_mul_ps(value, _mm_loadu_ps(finish.row_scales + row));
  value = _mm_mul_ps(value, _mm_set1_ps(token_scale));
  if (finish.add) value = _mm_add_ps(value, _mm_loadu_ps(to + row));
  _mm_storeu_ps(to + row, value);
}

template <class Element>
K3_TARGET inline void finish_rows(const Finish& finish, const Element* totals, int rows, int token) {
  float* const to = finish.output + static_cast<std::size_t>(token) * finish.stride;
  const float token_scale = finish.token_scales == nullptr ? 1.0F : finish.token_scales[token];
  int row = 0;
  for (; row + kQuad <= rows; row += kQuad) finish_quad(finish, totals, row, token_scale, to);
  for (; row < rows; ++row) {
    float value = 0;
    if constexpr (std::is_integral_v<Element>) {
      value = static_cast<float>(totals[row] - finish.offset * finish.sums[row]);
    } else {
      value = totals[row];
    }
    if (finish.row_scales != nullptr) value *= finish.row_scales[row];
    value *= token_scale;
    to[row] = finish.add ? to[row] + value : value;
  }
}

// A run of blocks, `stride` bytes apart.
struct Blocks {
  const std::byte* first;
  std::size_t count;
  std::size_t stride = kBlockBytes;

  K3_TARGET inline Blocks from_row(int row) const {
    return {first + static_cast<std::size_t>(row) * kRowBytes, count, stride};
  }
};

// Decoded blocks lie a line further apart: at 1024 bytes, those of four rows would meet in a quarter of the
// nearest cache.
inline constexpr std::size_t kDecodedStride = kBlockBytes + 64;

// What else to fetch while computing.
struct Ahead {
  const std::byte* next = nullptr;
  const std::byte* end = nullptr;

  K3_TARGET inline __attribute__((always_inline)) void fetch() {
    if (next >= end) return;
    __builtin_prefetch(next);
    __builtin_prefetch(next + 64);
    next += 128;
  }
};

// Rows x Tokens sums over all blocks.
template <class Lanes, int Rows, int Tokens>
K3_TARGET inline __attribute__((always_inline)) void multiply_blocks(const Blocks& blocks,
                                                                     const std::byte* activations,
                                                                     std::size_t token_bytes, Ahead& ahead,
                                                                     typename Lanes::Element* totals) {
  typename Lanes::Sum sums[Rows * Tokens];
  for (auto& sum : sums) sum = Lanes::none();
  for (std::size_t block = 0; block < blocks.count; ++block) {
    const std::byte* const weights = blocks.first + block * blocks.stride;
    const std::byte* const inputs = activations + block * Lanes::kInputBytes;
    ahead.fetch();
#pragma GCC unroll 2
    for (std::size_t at = 0; at < kRowBytes / Lanes::kBytes; ++at) {
      typename Lanes::Input input[Tokens];
#pragma GCC unroll 8
      for (int token = 0; token < Tokens; ++token)
        input[token] = Lanes::input(inputs + static_cast<std::size_t>(token) * token_bytes, at);
#pragma GCC unroll 16
      for (int row = 0; row < Rows; ++row) {
        const auto weight =
            Lanes::load(weights + static_cast<std::size_t>(row) * kRowBytes + at * Lanes::kBytes);
#pragma GCC unroll 8
        for (int token = 0; token < Tokens; ++token)
          sums[token * Rows + row] = Lanes::dot(sums[token * Rows + row], weight, input[token]);
      }
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < Rows * Tokens; i += kQuad) Lanes::total4(sums + i, totals + i);
}

template <class Lanes, int Rows, int Tokens>
K3_TARGET __attribute__((noinline)) void run_blocks(const Blocks& blocks, const std::byte* activations,
                                                    std::size_t token_bytes, int rows, const Finish& finish,
                                                    Ahead& ahead) {
  typename Lanes::Element totals[Rows * Tokens];
  multiply_blocks<Lanes, Rows, Tokens>(blocks, activations, token_bytes, ahead, totals);
  for (int token = 0; token < Tokens; ++token)
    finish_rows(finish, totals + token * Rows, rows < Rows ? rows : Rows, token);
}

template <class Lanes, int Tokens>
K3_TARGET inline void run_tokens(int tokens, const Blocks& blocks, const std::byte* activations,
                                 std::size_t token_bytes, int rows, const Finish& finish, Ahead& ahead) {
  if constexpr (Tokens > 1) {
    if (tokens < Tokens) {
      run_tokens<Lanes, Tokens - 1>(tokens, blocks, activations, token_bytes, rows, finish, ahead);
      return;
    }
  }
  run_blocks<Lanes, kQuad, Tokens>(blocks, activations, token_bytes, rows, finish, ahead);
}

// A run of blocks against all tokens. `rows`: of the tile, that exist. `activations`: of the run's first
// column.
template <class Lanes>
K3_TARGET inline void run_tile(const Blocks& blocks, const std::byte* activations, std::size_t token_bytes,
                               std::size_t tokens, int rows, Finish finish, Ahead ahead) {
  if (tokens == 1) {
    for (int row = 0; row < rows; row += Lanes::kRowsOfOne) {
      Finish part = finish;
      part.output += row;
      if (part.row_scales != nullptr) part.row_scales += row;
      if (part.sums != nullptr) part.sums += row;
      run_blocks<Lanes, Lanes::kRowsOfOne, 1>(blocks.from_row(row), activations, token_bytes, rows - row,
                                              part, ahead);
    }
    return;
  }
  // As even as can be: 16 tokens of 6 at most are 6, 5 and 5.
  const std::size_t parts = (tokens + Lanes::kTokens - 1) / Lanes::kTokens;
  for (std::size_t part = 0, token = 0; part < parts; ++part) {
    const std::size_t some = (tokens - token + parts - part - 1) / (parts - part);
    for (int row = 0; row < rows; row += kQuad) {
      Finish quad = finish;
      quad.output += token * finish.stride + static_cast<std::size_t>(row);
      if (quad.row_scales != nullptr) quad.row_scales += row;
      if (quad.sums != nullptr) quad.sums += row;
      if (quad.token_scales != nullptr) quad.token_scales += token;
      run_tokens<Lanes, Lanes::kTokens>(static_cast<int>(some), blocks.from_row(row),
                                        activations + token * token_bytes, token_bytes, rows - row, quad,
                                        ahead);
    }
    token += some;
  }
}

inline int rows_of_tile(const Packed& weights, std::size_t tile) {
  const std::size_t left = weights.rows - tile * kTileRows;
  return static_cast<int>(left < kTileRows ? left : kTileRows);
}

inline Ahead next_tile(const Packed& weights, std::size_t tile) {
  if (tile + 1 >= weights.tile_count()) return {};
  return {weights.tile(tile + 1),
          weights.tile(tile + 1) + ((*weights.tiles)[tile + 2] - (*weights.tiles)[tile + 1])};
}
