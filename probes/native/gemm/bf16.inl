// BF16 activations by rows: of BF16 weights, and of MXFP4 that was decoded to BF16.
//
// Lanes give besides:  void prepare(const std::uint16_t* from, std::size_t depth, std::size_t columns,
// std::byte* to)
//                      one token's activations as `input` wants them, zeros from `depth` on
#pragma once

#include "rows.inl"

template <class Lanes>
K3_TARGET inline void prepare_activations(const Call& call, std::size_t columns) {
  for (std::size_t token = 0; token < call.tokens; ++token) {
    Lanes::prepare(call.activations + token * call.weights->depth, call.weights->depth, columns,
                   call.workspace->activations() + token * (columns / kGroup) * Lanes::kInputBytes);
  }
}

template <class Lanes>
K3_TARGET void run_bf16(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t blocks = weights.depth / kGroup;
  prepare_activations<Lanes>(call, weights.depth);
  for (std::size_t tile = 0; tile < weights.tile_count(); ++tile) {
    const Finish finish{call.output + tile * kTileRows, weights.rows, nullptr, nullptr, 0, nullptr, false};
    run_tile<Lanes>({weights.tile(tile), blocks}, call.workspace->activations(), blocks * Lanes::kInputBytes,
                    call.tokens, rows_of_tile(weights, tile), finish, next_tile(weights, tile));
  }
}

// `Decode` makes of a block of codes four of BF16.
template <class Lanes, void (*Decode)(const std::byte*, std::size_t, std::byte*)>
K3_TARGET void run_mxfp4_bf16(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t columns = (weights.depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  constexpr std::size_t kBlocks = kCodeDepth / kGroup;
  prepare_activations<Lanes>(call, columns);
  for (std::size_t tile = 0; tile < weights.tile_count(); ++tile) {
    const std::byte* at = weights.tile(tile);
    for (bool last = false, first = true; !last; first = false) {
      const auto& head = *reinterpret_cast<const SegmentHead*>(at);
      Decode(at + sizeof head, head.blocks, call.workspace->decoded());
      const Finish finish{
          call.output + tile * kTileRows, weights.rows, head.scale, nullptr, 0, nullptr, !first};
      run_tile<Lanes>({call.workspace->decoded(), kBlocks * head.blocks},
                      call.workspace->activations() + kBlocks * head.first_block * Lanes::kInputBytes,
                      columns / kGroup * Lanes::kInputBytes, call.tokens, rows_of_tile(weights, tile), finish,
                      next_tile(weights, tile));
      last = head.last != 0;
      at += sizeof head + head.blocks * kCodeBlockBytes;
    }
  }
}

// Float32 of the even columns and of the odd ones in turn, `Lanes` of each: as shifting and masking words
// gives them.
template <std::size_t Lanes>
K3_TARGET inline void prepare_floats(const std::uint16_t* from, std::size_t depth, std::size_t columns,
                                     std::byte* to) {
  auto* const values = reinterpret_cast<float*>(to);
  for (std::size_t k = 0; k < columns; k += 2 * Lanes) {
    for (std::size_t i = 0; i < Lanes; ++i) {
      const bool inside = k < depth;  // depths are multiples of 32
      values[k + i] = inside ? from_bf16(from[k + 2 * i]) : 0.0F;
      values[k + Lanes + i] = inside ? from_bf16(from[k + 2 * i + 1]) : 0.0F;
    }
  }
}
