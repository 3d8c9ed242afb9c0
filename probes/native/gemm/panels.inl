// Products by panels: of a few tiles of weights and a few tokens, the sums lie in registers, a row a lane.
// Included by each family with K3_TARGET set, within an anonymous namespace.
//
// Lanes: what a family gives of its registers.
//   Vector, Input, Sum, Floats   registers of weights, of an activation in every lane, of sums, of float32
//   kBytes                       of a Vector: 64 or 32
//   kTiles, kTokens              how large a panel's sums may be for the registers
//   kScaled, kUnitBytes          whether a unit of weights is not a line but a block of Q8_0; its bytes
//   kWordOfToken                 bytes of a token's activations that go with one unit of weights
//   kOffset                      what was added to the activations
//   Vector load(const void*)
//   Input input(const std::byte*)
//   Sum none(), load_sum(const std::byte*), add(Sum, Sum), dot(Sum, Vector, Input)
//   void store_sum(std::byte*, Sum)
//   Floats floats<kOffset>(Sum, const std::int32_t* weight_sums)
//   Floats load_floats(const float*), load_some(const float*, count), every(float)
//   Floats times(Floats, Floats), plus(Floats, Floats)
//   void store_some(float*, Floats, count)
#pragma once

// What else to fetch while computing: `bytes` at each of `tiles` places.
struct Ahead {
  const std::byte* at = nullptr;
  std::size_t stride = 0;
  std::size_t bytes = 0;
  std::size_t tiles = 0;
  std::size_t lines_at_once = 1;
  std::size_t done = 0;

  // So that all is fetched within so many steps.
  K3_TARGET inline Ahead within(std::size_t steps) const {
    Ahead found = *this;
    const std::size_t lines = tiles * ((bytes + kLineBytes - 1) / kLineBytes);
    found.lines_at_once = (lines + steps - 1) / steps;
    return found;
  }

  K3_TARGET inline __attribute__((always_inline)) void fetch() {
    if (tiles == 0) return;
    for (std::size_t i = 0; i < lines_at_once; ++i) {
      __builtin_prefetch(at + done, 0, 2);
      done += kLineBytes;
    }
    if (done >= bytes) {
      done = 0;
      at += stride;
      --tiles;
    }
  }
};

// Lines, or other units, of some tiles, those of one tile `stride` bytes after those of the one before.
struct Lines {
  const std::byte* first;
  std::size_t stride;
  std::size_t count;
};

// Adds to the sums of `Tiles` tiles and `Tokens` tokens what these lines give; they lie at `kept` as
// [token][tile][row]. `Fetch`: the lines come from memory, each tile's a stream that is fetched a little
// ahead.
template <class Lanes, int Tiles, int Tokens, bool Fetch>
K3_TARGET __attribute__((noinline)) void multiply_lines(const Lines& lines, const std::byte* inputs,
                                                        std::size_t token_bytes, std::byte* kept, bool begin,
                                                        Ahead& ahead) {
  constexpr int kParts = kLineBytes / Lanes::kBytes;
  constexpr int kVectors = Tiles * kParts;
  typename Lanes::Sum sums[kVectors * Tokens];
#pragma GCC unroll 32
  for (int i = 0; i < kVectors * Tokens; ++i)
    sums[i] = begin ? Lanes::none() : Lanes::load_sum(kept + static_cast<std::size_t>(i) * Lanes::kBytes);
  constexpr std::size_t kFetched = 2 * kBlockBytes;
  const std::byte* weights = lines.first;
  for (std::size_t line = 0; line < lines.count; ++line) {
    if constexpr (Fetch) {
#pragma GCC unroll 4
      for (std::size_t tile = 0; tile < Tiles; ++tile)
        __builtin_prefetch(weights + tile * lines.stride + kFetched);
    } else {
      ahead.fetch();
    }
    typename Lanes::Vector weight[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      weight[i] = Lanes::load(weights + static_cast<std::size_t>(i / kParts) * lines.stride +
                              static_cast<std::size_t>(i % kParts) * Lanes::kBytes);
#pragma GCC unroll 8
    for (int token = 0; token < Tokens; ++token) {
      const auto input = Lanes::input(inputs + static_cast<std::size_t>(token) * token_bytes);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i)
        sums[token * kVectors + i] = Lanes::dot(sums[token * kVectors + i], weight[i], input);
    }
    weights += kLineBytes;
    inputs += Lanes::kWordOfToken;
  }
#pragma GCC unroll 32
  for (int i = 0; i < kVectors * Tokens; ++i)
    Lanes::store_sum(kept + static_cast<std::size_t>(i) * Lanes::kBytes, sums[i]);
}

template <class Lanes, int Tiles, int Tokens, bool Fetch>
K3_TARGET inline void multiply_units(const Lines& lines, const std::byte* inputs, std::size_t token_bytes,
                                     std::byte* kept, bool begin, Ahead& ahead)
  requires(!Lanes::kScaled)
{
  multiply_lines<Lanes, Tiles, Tokens, Fetch>(lines, inputs, token_bytes, kept, begin, ahead);
}

template <class Lanes, int Tiles, int Tokens, bool Fetch>
K3_TARGET inline void multiply_some(std::size_t tokens, const Lines& lines, const std::byte* inputs,
                                    std::size_t token_bytes, std::byte* kept, bool begin, Ahead& ahead) {
  if constexpr (Tokens > 1) {
    if (tokens < Tokens) {
      multiply_some<Lanes, Tiles, Tokens - 1, Fetch>(tokens, lines, inputs, token_bytes, kept, begin, ahead);
      return;
    }
  }
  multiply_units<Lanes, Tiles, Tokens, Fetch>(lines, inputs, token_bytes, kept, begin, ahead);
}

template <class Lanes>
constexpr std::size_t parts_of_tokens(std::size_t tokens) {
  return (tokens + Lanes::kTokens - 1) / Lanes::kTokens;
}

// All tokens, in parts as even as can be: 16 tokens of 6 at most are 6, 5 and 5.
template <class Lanes, int Tiles, bool Fetch = false>
K3_TARGET inline void multiply_tokens(std::size_t tokens, const Lines& lines, const std::byte* inputs,
                                      std::size_t token_bytes, std::byte* kept, bool begin,
                                      const Ahead& next) {
  const std::size_t parts = parts_of_tokens<Lanes>(tokens);
  Ahead ahead = next.within(parts * lines.count * (Lanes::kUnitBytes / kLineBytes));
  for (std::size_t part = 0, token = 0; part < parts; ++part) {
    const std::size_t some = (tokens - token + parts - part - 1) / (parts - part);
    multiply_some<Lanes, Tiles, static_cast<int>(Lanes::kTokens), Fetch>(
        some, lines, inputs + token * token_bytes, token_bytes, kept + token * Tiles * kLineBytes, begin,
        ahead);
    token += some;
  }
}

// What sums become: sum x row scale x token scale, stored or added.
struct Finish {
  float* output;              // [tokens, stride]
  std::size_t stride;         // all rows
  const float* token_scales;  // nullptr: 1
};

template <class Lanes>
K3_TARGET inline __attribute__((always_inline)) void finish_sum(typename Lanes::Sum sum, const RowsHead* head,
                                                                const Finish& finish, std::size_t row,
                                                                std::size_t token, bool add) {
  constexpr std::size_t kRows = Lanes::kBytes / kWordBytes;
  if (row >= finish.stride) return;
  const std::size_t rows = finish.stride - row < kRows ? finish.stride - row : kRows;
  const std::size_t inside = row % kTileRows;
  auto value = Lanes::template floats<Lanes::kOffset>(sum, head->sum + inside);
  value = Lanes::times(value, Lanes::load_floats(head->scale + inside));
  if (finish.token_scales != nullptr) value = Lanes::times(value, Lanes::every(finish.token_scales[token]));
  float* const to = finish.output + token * finish.stride + row;
  if (add) value = Lanes::plus(value, Lanes::load_some(to, rows));
  Lanes::store_some(to, value, rows);
}

template <class Lanes, int Tiles>
K3_TARGET inline void finish_panel(const std::byte* kept, std::size_t tokens, const RowsHead* const* heads,
                                   std::size_t first_row, const Finish& finish, bool add) {
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t at = 0; at < Tiles * kLineBytes; at += Lanes::kBytes, kept += Lanes::kBytes)
      finish_sum<Lanes>(Lanes::load_sum(kept), heads[at / kLineBytes], finish, first_row + at / kWordBytes,
                        token, add);
  }
}

// What of a panel's lines stays in the nearest cache while all tokens pass: 32 KiB of four tiles.
inline constexpr std::size_t kChunkLines = 128;

// Weights that are multiplied as they lie. `head_bytes`: before the units of each tile, 0 where there is no
// head.
template <class Lanes, int Tiles>
K3_TARGET inline void run_plain_panel(const Call& call, std::size_t tile, std::size_t head_bytes,
                                      std::size_t token_bytes, const Finish& finish) {
  const Packed& weights = *call.weights;
  const std::size_t tile_bytes = (*weights.tiles)[tile + 1] - (*weights.tiles)[tile];
  const std::size_t all = (tile_bytes - head_bytes) / Lanes::kUnitBytes;
  constexpr std::size_t kChunk = kChunkLines * kLineBytes / Lanes::kUnitBytes;
  const std::byte* const begin = weights.tile(tile) + head_bytes;
  std::byte* const kept = call.workspace->sums();
  const std::byte* const inputs = call.workspace->activations();
  const RowsHead* heads[Tiles];
  for (std::size_t i = 0; i < Tiles; ++i)
    heads[i] = head_bytes == 0 ? &kNoHead : reinterpret_cast<const RowsHead*>(weights.tile(tile + i));
  if (call.tokens <= Lanes::kTokens) {
    multiply_tokens<Lanes, Tiles, Tiles == Lanes::kTiles>(call.tokens, {begin, tile_bytes, all}, inputs,
                                                          token_bytes, kept, true, {});
  } else {
    const std::byte* const next = begin + Tiles * tile_bytes;
    const bool more = next < weights.tile(weights.tile_count());
    for (std::size_t done = 0; done < all; done += kChunk) {
      const std::size_t left = all - done;
      Ahead ahead;
      if (left > kChunk) {
        const std::size_t after = left - kChunk < kChunk ? left - kChunk : kChunk;
        ahead = {begin + (done + kChunk) * Lanes::kUnitBytes, tile_bytes, after * Lanes::kUnitBytes, Tiles};
      } else if (more) {
        ahead = {next, tile_bytes, kChunk * Lanes::kUnitBytes, Tiles};
      }
      multiply_tokens<Lanes, Tiles>(
          call.tokens, {begin + done * Lanes::kUnitBytes, tile_bytes, left < kChunk ? left : kChunk},
          inputs + done * Lanes::kWordOfToken, token_bytes, kept, done == 0, ahead);
    }
  }
  finish_panel<Lanes, Tiles>(kept, call.tokens, heads, tile * kTileRows, finish, false);
}

template <class Lanes>
K3_TARGET void run_plain(const Call& call, std::size_t head_bytes, std::size_t token_bytes,
                         const Finish& finish) {
  constexpr int kTiles = Lanes::kTiles;
  std::size_t tile = 0;
  for (; tile + kTiles <= call.weights->tile_count(); tile += kTiles)
    run_plain_panel<Lanes, kTiles>(call, tile, head_bytes, token_bytes, finish);
  for (; tile < call.weights->tile_count(); ++tile)
    run_plain_panel<Lanes, 1>(call, tile, head_bytes, token_bytes, finish);
}
