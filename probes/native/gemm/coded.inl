// MXFP4, decoded a chunk at a time for many tokens or in registers for few. Included with K3_TARGET set.
//
// Coding: into what codes are decoded.
//   kBlocks       blocks of 16 lines that a block of codes becomes
//   decode(blocks, count, to)
//   kMostDirect   tokens up to which nothing is decoded to memory; 0: never
//   multiply<Tiles>(tokens, blocks, stride, count, inputs, token_bytes, kept)   so few tokens
#pragma once

#include "panels.inl"

template <int Tiles>
std::size_t stride_of(const std::byte* const* segments) {
  return static_cast<std::size_t>(segments[Tiles > 1 ? 1 : 0] - segments[0]);
}

// A segment of each of `Tiles` tiles against many tokens: decoded in chunks that stay in the nearest cache.
template <class Lanes, class Coding, int Tiles>
K3_TARGET inline void multiply_decoded(const Call& call, const std::byte* const* segments,
                                       std::size_t token_bytes, const std::byte* next) {
  constexpr std::size_t kChunk = kChunkLines / (Coding::kBlocks * kLines);  // in blocks of codes
  constexpr std::size_t kStride = kChunkLines * kLineBytes;
  constexpr std::size_t kLinesEach = Coding::kBlocks * kLines;
  const auto& head = *reinterpret_cast<const SegmentHead*>(segments[0]);
  const std::byte* const inputs =
      call.workspace->activations() + head.first_block * kLinesEach * Lanes::kWordOfToken;
  for (std::size_t done = 0; done < head.blocks; done += kChunk) {
    const std::size_t left = head.blocks - done;
    const std::size_t some = left < kChunk ? left : kChunk;
    for (std::size_t i = 0; i < Tiles; ++i)
      Coding::decode(segments[i] + sizeof head + done * kCodeBlockBytes, some,
                     call.workspace->decoded() + i * kStride);
    Ahead ahead;
    const std::size_t stride = stride_of<Tiles>(segments);
    if (left > some) {
      const std::size_t more = left - some < kChunk ? left - some : kChunk;
      ahead = {segments[0] + sizeof head + (done + some) * kCodeBlockBytes, stride, more * kCodeBlockBytes,
               Tiles};
    } else if (next != nullptr) {
      ahead = {next, stride, kChunk * kCodeBlockBytes, Tiles};
    }
    multiply_tokens<Lanes, Tiles>(call.tokens, {call.workspace->decoded(), kStride, kLinesEach * some},
                                  inputs + done * kLinesEach * Lanes::kWordOfToken, token_bytes,
                                  call.workspace->sums(), done == 0, ahead);
  }
}

// The same segment of `Tiles` tiles against all tokens.
template <class Lanes, class Coding, int Tiles>
K3_TARGET inline void multiply_segments(const Call& call, const std::byte* const* segments,
                                        std::size_t token_bytes, const std::byte* next) {
  if (call.tokens > Coding::kMostDirect) {
    multiply_decoded<Lanes, Coding, Tiles>(call, segments, token_bytes, next);
    return;
  }
  const auto& head = *reinterpret_cast<const SegmentHead*>(segments[0]);
  const std::byte* const inputs =
      call.workspace->activations() + head.first_block * Coding::kBlocks * kLines * Lanes::kWordOfToken;
  Coding::template multiply<Tiles>(call.tokens, segments[0] + sizeof head, stride_of<Tiles>(segments),
                                   head.blocks, inputs, token_bytes, call.workspace->sums());
}

inline bool one_segment(const Packed& weights, std::size_t tile) {
  return reinterpret_cast<const SegmentHead*>(weights.tile(tile))->last != 0;
}

// False where one of the tiles is cut in segments.
template <class Lanes, class Coding, int Tiles>
K3_TARGET inline bool run_coded_panel(const Call& call, std::size_t tile, std::size_t token_bytes,
                                      const Finish& finish) {
  const Packed& weights = *call.weights;
  const std::byte* segments[Tiles];
  const RowsHead* heads[Tiles];
  for (std::size_t i = 0; i < Tiles; ++i) {
    if (!one_segment(weights, tile + i)) return false;
    segments[i] = weights.tile(tile + i);
    heads[i] = reinterpret_cast<const RowsHead*>(segments[i]);
  }
  multiply_segments<Lanes, Coding, Tiles>(
      call, segments, token_bytes,
      tile + Tiles + Tiles <= weights.tile_count() ? weights.tile(tile + Tiles) : nullptr);
  finish_panel<Lanes, Tiles>(call.workspace->sums(), call.tokens, heads, tile * kTileRows, finish, false);
  return true;
}

// A tile by its segments.
template <class Lanes, class Coding>
K3_TARGET inline void run_coded_tile(const Call& call, std::size_t tile, std::size_t token_bytes,
                                     const Finish& finish) {
  const std::byte* at = call.weights->tile(tile);
  std::byte* const kept = call.workspace->sums();
  for (bool last = false, first = true; !last; first = false) {
    const auto& head = *reinterpret_cast<const SegmentHead*>(at);
    multiply_segments<Lanes, Coding, 1>(call, &at, token_bytes, nullptr);
    const RowsHead* const rows = &head.rows;
    finish_panel<Lanes, 1>(kept, call.tokens, &rows, tile * kTileRows, finish, !first);
    last = head.last != 0;
    at += sizeof head + head.blocks * kCodeBlockBytes;
  }
}

template <class Lanes, class Coding>
K3_TARGET void run_coded(const Call& call, std::size_t token_bytes, const Finish& finish) {
  constexpr std::size_t kTiles = Lanes::kTiles;
  const std::size_t count = call.weights->tile_count();
  for (std::size_t tile = 0; tile < count;) {
    if (kTiles > 1 && tile + kTiles <= count &&
        run_coded_panel<Lanes, Coding, kTiles>(call, tile, token_bytes, finish)) {
      tile += kTiles;
    } else {
      run_coded_tile<Lanes, Coding>(call, tile++, token_bytes, finish);
    }
  }
}
