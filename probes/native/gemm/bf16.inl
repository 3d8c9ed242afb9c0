// BF16 activations: of BF16 weights, and of MXFP4 that was decoded to BF16. Included with K3_TARGET set.
//
// Lanes give besides:  void prepare(const std::uint16_t* from, std::size_t depth, std::size_t columns,
// std::byte* to)
//                      one token's activations as `input` wants them, zeros from `depth` on
#pragma once

#include "coded.inl"

// Returns the bytes from token to token.
template <class Lanes>
K3_TARGET inline std::size_t prepare_activations(const Call& call, std::size_t columns) {
  const std::size_t token_bytes = padded_row(columns / 2 * Lanes::kWordOfToken);
  for (std::size_t token = 0; token < call.tokens; ++token)
    Lanes::prepare(call.activations + token * call.weights->depth, call.weights->depth, columns,
                   call.workspace->activations() + token * token_bytes);
  return token_bytes;
}

template <class Lanes>
K3_TARGET void run_bf16(const Call& call) {
  const std::size_t token_bytes = prepare_activations<Lanes>(call, call.weights->depth);
  run_plain<Lanes>(call, 0, token_bytes, {call.output, call.weights->rows, nullptr});
}

// For coded.inl. `Decode` makes of a block of codes four of BF16.
template <void (*Decode)(const std::byte*, std::size_t, std::byte*)>
struct Words {
  static constexpr std::size_t kBlocks = 4;
  static constexpr std::size_t kMostDirect = 0;

  static void decode(const std::byte* blocks, std::size_t count, std::byte* to) { Decode(blocks, count, to); }
  template <int Tiles>
  static void multiply(std::size_t, const std::byte*, std::size_t, std::size_t, const std::byte*, std::size_t,
                       std::byte*) {}
};

template <class Lanes, void (*Decode)(const std::byte*, std::size_t, std::byte*)>
K3_TARGET void run_mxfp4_bf16(const Call& call) {
  const std::size_t columns = (call.weights->depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  const std::size_t token_bytes = prepare_activations<Lanes>(call, columns);
  run_coded<Lanes, Words<Decode>>(call, token_bytes, {call.output, call.weights->rows, nullptr});
}

// Float32 of each column.
K3_TARGET inline void prepare_floats(const std::uint16_t* from, std::size_t depth, std::size_t columns,
                                     std::byte* to) {
  auto* const values = reinterpret_cast<float*>(to);
  for (std::size_t k = 0; k < depth; ++k)
    values[k] = std::bit_cast<float>(static_cast<std::uint32_t>(from[k]) << 16);
  for (std::size_t k = depth; k < columns; ++k) values[k] = 0.0F;
}
