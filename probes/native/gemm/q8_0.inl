// Q8_0 with activations rounded by groups of 32; included with K3_TARGET set. Whole numbers of a group are
// summed exactly, scaled, and added up in float32.
//
// Bytes give besides:  Sum every_sum(std::int32_t), dot_raised(Sum, Vector raised, Input)
//                      kStart        times the sum of the activations: what dot_raised adds too much,
//                      negative
// Floats give besides: Floats halves(const void* of_16_rows, part), fused(a, b, c)   a b + c
#pragma once

#include "activations.inl"
#include "panels.inl"

// As lanes of panels.inl, whose unit of weights is a block and whose sums are float32.
template <class Bytes, class Words>
struct Scaled : Words {
  using Whole = Bytes;
  static constexpr bool kScaled = true;
  static constexpr std::size_t kUnitBytes = kScaledBlockBytes;
  static constexpr std::size_t kWordOfToken = kScaledInputs;
  static constexpr std::size_t kTokens = 3;
};

// One group of 32 columns of some tiles and tokens.
template <class Lanes, int Tiles, int Tokens, bool Fetch>
K3_TARGET inline __attribute__((always_inline)) void multiply_group(
    const std::byte* block, std::size_t stride, std::size_t half, const std::byte* inputs,
    std::size_t token_bytes, typename Lanes::Floats* sums, Ahead& ahead) {
  using Bytes = typename Lanes::Whole;
  constexpr int kParts = kLineBytes / Lanes::kBytes;
  constexpr int kVectors = Tiles * kParts;
  constexpr std::size_t kLinesOfGroup = kGroup / kWordBytes;
  constexpr std::size_t kFetched = 2 * kScaledBlockBytes;
  typename Bytes::Sum whole[kVectors * Tokens];
  const ActivationGroup* groups[Tokens];
#pragma GCC unroll 4
  for (std::size_t token = 0; token < Tokens; ++token) {
    groups[token] =
        reinterpret_cast<const ActivationGroup*>(inputs + token * token_bytes + kScaledDepth) + half;
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      whole[token * kVectors + static_cast<std::size_t>(i)] = Bytes::every_sum(groups[token]->start);
  }
#pragma GCC unroll 8
  for (std::size_t line = half * kLinesOfGroup; line < (half + 1) * kLinesOfGroup; ++line) {
    if constexpr (Fetch) {
#pragma GCC unroll 4
      for (std::size_t tile = 0; tile < Tiles; ++tile)
        __builtin_prefetch(block + tile * stride + line * kLineBytes + kFetched);
    } else {
      ahead.fetch();
    }
    typename Bytes::Vector weight[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i)
      weight[i] = Bytes::load(block + static_cast<std::size_t>(i / kParts) * stride + line * kLineBytes +
                              static_cast<std::size_t>(i % kParts) * Lanes::kBytes);
#pragma GCC unroll 4
    for (std::size_t token = 0; token < Tokens; ++token) {
      const auto input = Bytes::input(inputs + token * token_bytes + line * kWordBytes);
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kVectors; ++i)
        whole[token * kVectors + i] = Bytes::dot_raised(whole[token * kVectors + i], weight[i], input);
    }
  }
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kVectors; ++i) {
    const auto scales =
        Lanes::halves(block + i / kParts * stride + kBlockBytes + half * kTileRows * kHalfBytes, i % kParts);
#pragma GCC unroll 4
    for (std::size_t token = 0; token < Tokens; ++token) {
      auto& sum = sums[token * kVectors + i];
      const auto value = Bytes::template floats<0>(whole[token * kVectors + i], nullptr);
      sum = Lanes::fused(Lanes::times(value, scales), Lanes::every(groups[token]->scale), sum);
    }
  }
}

// As multiply_lines, of blocks.
template <class Lanes, int Tiles, int Tokens, bool Fetch>
K3_TARGET __attribute__((noinline)) void multiply_scaled(const Lines& blocks, const std::byte* inputs,
                                                         std::size_t token_bytes, std::byte* kept, bool begin,
                                                         Ahead& ahead) {
  constexpr std::size_t kSums = Tiles * (kLineBytes / Lanes::kBytes) * Tokens;
  typename Lanes::Floats sums[kSums];
#pragma GCC unroll 32
  for (std::size_t i = 0; i < kSums; ++i)
    sums[i] = begin ? Lanes::none() : Lanes::load_sum(kept + i * Lanes::kBytes);
  const std::byte* block = blocks.first;
  for (std::size_t i = 0; i < blocks.count; ++i, block += kScaledBlockBytes, inputs += kScaledInputs) {
    if constexpr (Fetch) {
#pragma GCC unroll 4
      for (std::size_t tile = 0; tile < Tiles; ++tile)
        __builtin_prefetch(block + tile * blocks.stride + 2 * kScaledBlockBytes + kBlockBytes);
    } else {
      ahead.fetch();
    }
    multiply_group<Lanes, Tiles, Tokens, Fetch>(block, blocks.stride, 0, inputs, token_bytes, sums, ahead);
    multiply_group<Lanes, Tiles, Tokens, Fetch>(block, blocks.stride, 1, inputs, token_bytes, sums, ahead);
  }
#pragma GCC unroll 32
  for (std::size_t i = 0; i < kSums; ++i) Lanes::store_sum(kept + i * Lanes::kBytes, sums[i]);
}

template <class Lanes, int Tiles, int Tokens, bool Fetch>
K3_TARGET inline void multiply_units(const Lines& lines, const std::byte* inputs, std::size_t token_bytes,
                                     std::byte* kept, bool begin, Ahead& ahead)
  requires Lanes::kScaled
{
  multiply_scaled<Lanes, Tiles, Tokens, Fetch>(lines, inputs, token_bytes, kept, begin, ahead);
}

template <class Bytes, class Words>
K3_TARGET void run_q8_0(const Call& call) {
  const std::size_t depth = call.weights->depth;
  const std::size_t token_bytes = padded_row((depth + kScaledDepth - 1) / kScaledDepth * kScaledInputs);
  round_groups(call.activations, call.tokens, depth, Bytes::kStart, call.workspace->activations(),
               token_bytes);
  run_plain<Scaled<Bytes, Words>>(call, 0, token_bytes, {call.output, call.weights->rows, nullptr});
}
