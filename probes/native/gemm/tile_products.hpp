// Products by tiles, the same code over the CPU's tiles and over their model.
//
// Activations are the first operand, row by row as they lie once they are rounded; weights the second, as
// blocks lie packed or decoded; so a tile of sums has tokens down and rows of weights across, as the output.
// Two tiles of tokens meet two of weights: four products for four loads. The depth is cut in chunks whose
// weights stay in the nearest cache, the sums lying in memory between two chunks.
//
// Help (tile_help.hpp) does what is no tile operation: round, decode and scale.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gemm.hpp"
#include "tiles.hpp"

namespace k3gate::gemm {

// Blocks of 64 bytes a row in one chunk: 16 of them are two tiles of weights in 32 KiB.
inline constexpr std::size_t kChunkBlocks = 16;

// What one tile of weights contributes to a run: whole blocks along the depth.
struct TileRun {
  const std::byte* blocks;  // packed
  const float* row_scales;  // nullptr: 1
  std::size_t first_row;
  bool add;  // to what an earlier segment left
};

// How packed weights become blocks that tiles load: not at all, or decoded to so many blocks each.
enum class Decoding { kNone, kBytes, kBf16 };

constexpr std::size_t packed_block_bytes(Decoding decoding) {
  return decoding == Decoding::kNone ? kBlockBytes : kCodeBlockBytes;
}

constexpr std::size_t blocks_of_packed(Decoding decoding) {
  return decoding == Decoding::kNone ? 1 : decoding == Decoding::kBytes ? 2 : 4;
}

template <class Tiles, class Help, Decoding kDecoding, bool kBytes>
class TileProduct {
 public:
  explicit TileProduct(const Call& call) : call_(call), weights_(*call.weights) {
    constexpr std::size_t kColumns = kBytes ? kRowBytes : kRowBytes / 2;
    const std::size_t unit = kDecoding == Decoding::kNone ? kColumns : kCodeDepth;
    depth_blocks_ = (weights_.depth + unit - 1) / unit * unit / kColumns;
    token_tiles_ = (call.tokens + kTileRows - 1) / kTileRows;
    inputs_ = call.workspace->activations();
    row_bytes_ = padded_row(depth_blocks_ * kRowBytes);
    sums_ = call.workspace->sums();
    decoded_ = call.workspace->decoded();
    token_scales_ = kBytes ? call.workspace->scales() : nullptr;
  }

  void run() {
    Help::prepare_rows(kBytes, call_, row_bytes_, inputs_);
    Tiles::configure(kWholeTiles);
    for (std::size_t tile = 0; tile < weights_.tile_count();) tile += run_tiles(tile);
    Tiles::release();
  }

 private:
  std::byte* input(std::size_t token_tile, std::size_t block) const {
    return inputs_ + token_tile * kTileRows * row_bytes_ + block * kRowBytes;
  }

  // Returns how many tiles of weights were done: two where both are one segment each.
  std::size_t run_tiles(std::size_t tile) {
    if constexpr (kDecoding == Decoding::kNone) {
      const bool two = tile + 1 < weights_.tile_count();
      TileRun runs[2] = {plain(tile), two ? plain(tile + 1) : plain(tile)};
      set_ahead(tile + (two ? 2 : 1));
      run_depth(runs, two ? 2 : 1, 0, depth_blocks_);
      return two ? 2 : 1;
    } else {
      const auto& head = *reinterpret_cast<const SegmentHead*>(weights_.tile(tile));
      if (head.last != 0 && tile + 1 < weights_.tile_count()) {
        const auto& second = *reinterpret_cast<const SegmentHead*>(weights_.tile(tile + 1));
        if (second.last != 0) {
          TileRun runs[2] = {coded(weights_.tile(tile), tile, false),
                             coded(weights_.tile(tile + 1), tile + 1, false)};
          set_ahead(tile + 2);
          run_depth(runs, 2, 0, depth_blocks_);
          return 2;
        }
      }
      const std::byte* at = weights_.tile(tile);
      set_ahead(tile + 1);
      for (bool last = false, first = true; !last; first = false) {
        const auto& segment = *reinterpret_cast<const SegmentHead*>(at);
        TileRun runs[2] = {coded(at, tile, !first), coded(at, tile, !first)};
        constexpr std::size_t kEach = blocks_of_packed(kDecoding);
        run_depth(runs, 1, segment.first_block * kEach, segment.blocks * kEach);
        last = segment.last != 0;
        at += sizeof segment + segment.blocks * kCodeBlockBytes;
      }
      return 1;
    }
  }

  TileRun plain(std::size_t tile) const {
    if constexpr (kBytes) {
      const std::byte* const at = weights_.tile(tile);
      return {at + sizeof(RowsHead), reinterpret_cast<const RowsHead*>(at)->scale, tile * kTileRows, false};
    } else {
      return {weights_.tile(tile), nullptr, tile * kTileRows, false};
    }
  }

  TileRun coded(const std::byte* at, std::size_t tile, bool add) const {
    return {at + sizeof(SegmentHead), reinterpret_cast<const RowsHead*>(at)->scale, tile * kTileRows, add};
  }

  // The next tiles are fetched while these are multiplied.
  void set_ahead(std::size_t tile) {
    if (tile >= weights_.tile_count()) {
      ahead_ = ahead_end_ = nullptr;
      return;
    }
    ahead_ = weights_.tile(tile);
    ahead_end_ = weights_.data + (*weights_.tiles)[std::min(tile + 2, weights_.tile_count())];
    const std::size_t steps = std::max<std::size_t>(1, depth_blocks_ * ((token_tiles_ + 1) / 2));
    ahead_step_ = static_cast<std::size_t>(ahead_end_ - ahead_) / steps / 64 * 64 + 64;
  }

  void run_depth(const TileRun (&runs)[2], int count, std::size_t first, std::size_t blocks) {
    decode_later(runs, count, 0, std::min(kChunkBlocks, blocks), 1);
    for (std::size_t done = 0; done < blocks;) {
      const std::size_t some = std::min(kChunkBlocks, blocks - done);
      while (decode_next()) {
      }
      const std::byte* const loads[2] = {pending_.to[0], pending_.to[1]};
      const bool begin = done == 0;
      const bool end = done + some == blocks;
      // While these blocks are multiplied, so that the decoding costs no time of its own.
      if (!end)
        decode_later(runs, count, done + some, std::min(kChunkBlocks, blocks - done - some),
                     some * ((token_tiles_ + 1) / 2));
      for (std::size_t token = 0; token < token_tiles_; token += 2) {
        const int tokens = token + 1 < token_tiles_ ? 2 : 1;
        if (count == 2 && tokens == 2) run_chunk<2, 2>(runs, loads, first + done, some, token, begin, end);
        if (count == 2 && tokens == 1) run_chunk<2, 1>(runs, loads, first + done, some, token, begin, end);
        if (count == 1 && tokens == 2) run_chunk<1, 2>(runs, loads, first + done, some, token, begin, end);
        if (count == 1 && tokens == 1) run_chunk<1, 1>(runs, loads, first + done, some, token, begin, end);
      }
      done += some;
    }
  }

  // Sets out a chunk, from block `done` of the runs, to be decoded within `steps`; undecoded ones are loaded
  // as they lie.
  void decode_later(const TileRun (&runs)[2], int count, std::size_t done, std::size_t blocks,
                    std::size_t steps) {
    constexpr std::size_t kEach = blocks_of_packed(kDecoding);
    parity_ ^= 1;
    for (int i = 0; i < count; ++i) {
      pending_.packed[i] = runs[i].blocks + done / kEach * packed_block_bytes(kDecoding);
      pending_.to[i] = pending_.packed[i];
      if constexpr (kDecoding != Decoding::kNone)
        pending_.to[i] = decoded_ + (2 * parity_ + static_cast<std::size_t>(i)) * kChunkBlocks * kBlockBytes;
    }
    pending_.each = blocks / kEach;
    pending_.left = kDecoding == Decoding::kNone ? 0 : pending_.each * static_cast<std::size_t>(count);
    pending_.interval = pending_.left == 0 ? 1 : std::max<std::size_t>(1, steps / pending_.left);
    pending_.step = 0;
  }

  // One packed block; false where none is left.
  bool decode_next() {
    if constexpr (kDecoding == Decoding::kNone) return false;
    if (pending_.left == 0) return false;
    --pending_.left;
    const std::size_t tile = pending_.left / pending_.each;
    const std::size_t block = pending_.left % pending_.each;
    // Its place within the decoded memory, which `to` gives as what is only loaded.
    std::byte* const to = decoded_ + (2 * parity_ + tile) * kChunkBlocks * kBlockBytes +
                          block * blocks_of_packed(kDecoding) * kBlockBytes;
    Help::decode(kDecoding, pending_.packed[tile] + block * packed_block_bytes(kDecoding), 1, to);
    return true;
  }

  template <int C, int A, int B>
  static void dot() {
    if constexpr (kBytes) {
      Tiles::template dot_bytes<C, A, B>();
    } else {
      Tiles::template dot_bf16<C, A, B>();
    }
  }

  // Sums 0 to 3, activations 4 and 5, weights 6 and 7.
  template <int kRuns, int kTokens>
  void run_chunk(const TileRun (&runs)[2], const std::byte* const (&loads)[2], std::size_t block,
                 std::size_t count, std::size_t token, bool begin, bool end) {
    std::byte* const kept = sums_ + token / 2 * 4 * kBlockBytes;
    begin ? zero_sums<kRuns, kTokens>() : load_sums<kRuns, kTokens>(kept);
    for (std::size_t i = 0; i < count; ++i) {
      if (kDecoding != Decoding::kNone && ++pending_.step % pending_.interval == 0) decode_next();
      for (std::size_t line = 0; line < ahead_step_ && ahead_ < ahead_end_; line += 64, ahead_ += 64)
        __builtin_prefetch(ahead_, 0, 2);
      Tiles::template load<6>(loads[0] + i * kBlockBytes, kLineBytes);
      Tiles::template load<4>(input(token, block + i), row_bytes_);
      dot<0, 4, 6>();
      if constexpr (kRuns == 2) {
        Tiles::template load<7>(loads[1] + i * kBlockBytes, kLineBytes);
        dot<1, 4, 7>();
      }
      if constexpr (kTokens == 2) {
        Tiles::template load<5>(input(token + 1, block + i), row_bytes_);
        dot<2, 5, 6>();
        if constexpr (kRuns == 2) dot<3, 5, 7>();
      }
    }
    store_sums<kRuns, kTokens>(kept);
    if (!end) return;
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRuns; ++r)
        Help::finish(kBytes, kept + static_cast<std::size_t>(2 * t + r) * kBlockBytes, runs[r],
                     token + static_cast<std::size_t>(t), token_scales_, call_);
    }
  }

  template <int kRuns, int kTokens>
  static void zero_sums() {
    Tiles::template zero<0>();
    if constexpr (kRuns == 2) Tiles::template zero<1>();
    if constexpr (kTokens == 2) Tiles::template zero<2>();
    if constexpr (kRuns == 2 && kTokens == 2) Tiles::template zero<3>();
  }

  template <int kRuns, int kTokens>
  static void load_sums(const std::byte* from) {
    Tiles::template load<0>(from, kLineBytes);
    if constexpr (kRuns == 2) Tiles::template load<1>(from + kBlockBytes, kLineBytes);
    if constexpr (kTokens == 2) Tiles::template load<2>(from + 2 * kBlockBytes, kLineBytes);
    if constexpr (kRuns == 2 && kTokens == 2) Tiles::template load<3>(from + 3 * kBlockBytes, kLineBytes);
  }

  template <int kRuns, int kTokens>
  static void store_sums(std::byte* to) {
    Tiles::template store<0>(to, kLineBytes);
    if constexpr (kRuns == 2) Tiles::template store<1>(to + kBlockBytes, kLineBytes);
    if constexpr (kTokens == 2) Tiles::template store<2>(to + 2 * kBlockBytes, kLineBytes);
    if constexpr (kRuns == 2 && kTokens == 2) Tiles::template store<3>(to + 3 * kBlockBytes, kLineBytes);
  }

  struct Pending {
    const std::byte* packed[2] = {};
    const std::byte* to[2] = {};
    std::size_t each = 1;  // packed blocks of one tile
    std::size_t left = 0;
    std::size_t interval = 1;  // steps from one to the next
    std::size_t step = 0;
  };

  const Call& call_;
  const Packed& weights_;
  std::size_t depth_blocks_ = 0;  // of 64 bytes a row
  std::size_t token_tiles_ = 0;
  std::byte* inputs_ = nullptr;
  std::size_t row_bytes_ = 0;
  std::byte* sums_ = nullptr;
  std::byte* decoded_ = nullptr;
  const float* token_scales_ = nullptr;
  Pending pending_;
  std::size_t parity_ = 0;  // chunks take turns in two halves of the decoded memory
  const std::byte* ahead_ = nullptr;
  const std::byte* ahead_end_ = nullptr;
  std::size_t ahead_step_ = 64;
};

template <class Tiles, class Help>
void run_tiled(const Call& call, Path path) {
  const bool bytes = path == Path::kAmxInt8;
  if (call.weights->format == Format::kMxfp4) {
    if (bytes) {
      TileProduct<Tiles, Help, Decoding::kBytes, true>(call).run();
    } else {
      TileProduct<Tiles, Help, Decoding::kBf16, false>(call).run();
    }
  } else if (bytes) {
    TileProduct<Tiles, Help, Decoding::kNone, true>(call).run();
  } else {
    TileProduct<Tiles, Help, Decoding::kNone, false>(call).run();
  }
}

}  // namespace k3gate::gemm
