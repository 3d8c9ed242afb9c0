// MXFP4 and INT8 with activations rounded to bytes; included with K3_TARGET set.
//
// Lanes give besides:  Shift shift(const std::byte* of_16_rows, part)   what decoding a group needs
//                      Vector low(codes, shift), high(codes, shift)     signed bytes
//                      kMostDirect   tokens up to which codes are decoded in registers alone
#pragma once

#include "activations.inl"
#include "coded.inl"

// Tiles, `stride` bytes apart, whose codes are decoded in registers and multiplied at once: for few tokens,
// where each code is used few times. Several tiles at once are as many streams from memory, each fetched a
// little ahead: that is faster than one stream. Sums of low and of high nibbles are
// apart where registers are left, as each waits for the one before.
template <class Lanes, int Tiles, int Tokens>
K3_TARGET __attribute__((noinline)) void multiply_codes(const std::byte* block, std::size_t stride,
                                                        std::size_t count, const std::byte* inputs,
                                                        std::size_t token_bytes, std::byte* kept) {
  constexpr std::size_t kParts = kLineBytes / Lanes::kBytes;
  constexpr std::size_t kLinesOfGroup = kGroup / kWordBytes;
  constexpr std::size_t kAhead = 2 * kCodeBlockBytes;
  constexpr std::size_t kApart = Tiles * Tokens <= 8 ? 2 : 1;
  typename Lanes::Sum sums[kApart][Tokens][Tiles][kParts];
  for (auto& apart : sums) {
    for (auto& token : apart) {
      for (auto& tile : token) {
        for (auto& sum : tile) sum = Lanes::none();
      }
    }
  }
  for (; count > 0; --count, block += kCodeBlockBytes, inputs += kCodeDepth) {
#pragma GCC unroll 4
    for (std::size_t tile = 0; tile < Tiles; ++tile)
      __builtin_prefetch(block + tile * stride + kBlockBytes + kAhead);
    for (std::size_t half = 0; half < 2; ++half) {
#pragma GCC unroll 4
      for (std::size_t tile = 0; tile < Tiles; ++tile) {
        const std::byte* const at = block + tile * stride;
        typename Lanes::Shift shifts[2][kParts];
        for (std::size_t i = 0; i < 2 * kParts; ++i)
          shifts[i / kParts][i % kParts] =
              Lanes::shift(at + kBlockBytes + (2 * (i / kParts) + half) * kTileRows, i % kParts);
#pragma GCC unroll 2
        for (std::size_t i = 0; i < kLinesOfGroup; ++i) {
          const std::size_t line = half * kLinesOfGroup + i;
          __builtin_prefetch(at + line * kLineBytes + kAhead);
#pragma GCC unroll 2
          for (std::size_t part = 0; part < kParts; ++part) {
            const auto codes = Lanes::load(at + line * kLineBytes + part * Lanes::kBytes);
            const auto low = Lanes::low(codes, shifts[0][part]);
            const auto high = Lanes::high(codes, shifts[1][part]);
#pragma GCC unroll 4
            for (std::size_t token = 0; token < Tokens; ++token) {
              const std::byte* const input = inputs + token * token_bytes + line * Lanes::kWordOfToken;
              auto& first = sums[0][token][tile][part];
              auto& second = sums[kApart - 1][token][tile][part];
              first = Lanes::dot(first, low, Lanes::input(input));
              second = Lanes::dot(second, high, Lanes::input(input + kRowBytes));
            }
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (std::size_t token = 0; token < Tokens; ++token) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < Tiles * kParts; ++i) {
      auto sum = sums[0][token][i / kParts][i % kParts];
      if constexpr (kApart == 2) sum = Lanes::add(sum, sums[1][token][i / kParts][i % kParts]);
      Lanes::store_sum(kept + (token * Tiles * kParts + i) * Lanes::kBytes, sum);
    }
  }
}

// A block of codes to two of bytes.
template <class Lanes>
K3_TARGET inline void decode_block(const std::byte* block, std::byte* to) {
  constexpr std::size_t kParts = kLineBytes / Lanes::kBytes;
  constexpr std::size_t kLinesOfGroup = kGroup / kWordBytes;
  for (std::size_t half = 0; half < 2; ++half) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const auto low = Lanes::shift(block + kBlockBytes + half * kTileRows, part);
      const auto high = Lanes::shift(block + kBlockBytes + (2 + half) * kTileRows, part);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kLinesOfGroup; ++i) {
        const std::size_t at = (half * kLinesOfGroup + i) * kLineBytes + part * Lanes::kBytes;
        const auto codes = Lanes::load(block + at);
        Lanes::store(to + at, Lanes::low(codes, low));
        Lanes::store(to + kBlockBytes + at, Lanes::high(codes, high));
      }
    }
  }
}

template <class Lanes>
K3_TARGET inline void decode_codes(const std::byte* blocks, std::size_t count, std::byte* to) {
  for (; count > 0; --count, blocks += kCodeBlockBytes, to += 2 * kBlockBytes)
    decode_block<Lanes>(blocks, to);
}

// For coded.inl.
template <class Lanes>
struct Bytes {
  static constexpr std::size_t kBlocks = 2;
  static constexpr std::size_t kMostDirect = Lanes::kMostDirect;

  K3_TARGET static inline void decode(const std::byte* blocks, std::size_t count, std::byte* to) {
    decode_codes<Lanes>(blocks, count, to);
  }

  template <int Tiles>
  K3_TARGET static inline void multiply(std::size_t tokens, const std::byte* blocks, std::size_t stride,
                                        std::size_t count, const std::byte* inputs, std::size_t token_bytes,
                                        std::byte* kept) {
    if (tokens == 1) multiply_codes<Lanes, Tiles, 1>(blocks, stride, count, inputs, token_bytes, kept);
    if constexpr (kMostDirect > 1) {
      if (tokens == 2) multiply_codes<Lanes, Tiles, 2>(blocks, stride, count, inputs, token_bytes, kept);
      if (tokens == 3) multiply_codes<Lanes, Tiles, 3>(blocks, stride, count, inputs, token_bytes, kept);
      if (tokens == 4) multiply_codes<Lanes, Tiles, 4>(blocks, stride, count, inputs, token_bytes, kept);
    }
  }
};

template <class Lanes>
K3_TARGET inline Finish prepare_bytes(const Call& call, std::size_t token_bytes) {
  round_activations(call.activations, call.tokens, call.weights->depth, token_bytes, Lanes::kOffset,
                    reinterpret_cast<std::uint8_t*>(call.workspace->activations()), call.workspace->scales());
  return {call.output, call.weights->rows, call.workspace->scales()};
}

template <class Lanes>
K3_TARGET void run_mxfp4(const Call& call) {
  const std::size_t token_bytes =
      padded_row((call.weights->depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth);
  run_coded<Lanes, Bytes<Lanes>>(call, token_bytes, prepare_bytes<Lanes>(call, token_bytes));
}

template <class Lanes>
K3_TARGET void run_int8(const Call& call) {
  const std::size_t blocks = (call.weights->depth + kRowBytes - 1) / kRowBytes;
  const std::size_t token_bytes = padded_row(blocks * kRowBytes);
  run_plain<Lanes>(call, sizeof(RowsHead), token_bytes, prepare_bytes<Lanes>(call, token_bytes));
}
