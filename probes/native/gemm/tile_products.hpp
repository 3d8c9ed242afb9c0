// Products by tiles, the same code over the CPU's tiles and over their model.
//
// Activations are the first operand, row by row as they lie once they are rounded; weights the second, as
// blocks lie packed or decoded; so a tile of sums has tokens down and rows of weights across, as the output.
// Two tiles of tokens meet two of weights: four products for four loads. Sums stay in their tiles along the
// depth, as loading them anew costs more than weights from the second cache; only depths beyond a chunk's
// are cut. While one chunk is multiplied the next is decoded, and the one after it fetched.
//
// Help (tile_help.hpp) does what is no tile operation: round, decode and scale.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gemm.hpp"
#include "tiles.hpp"

namespace k3gate::gemm {

// Blocks of 64 bytes a row in one chunk: 128 KiB of two tiles of weights.
inline constexpr std::size_t kChunkBlocks = 64;

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
    Part part = next_part();
    decode_later(part, 1);
    while (part.count > 0) {
      while (decode_next()) {
      }
      const std::byte* const loads[2] = {pending_.to[0], pending_.to[1]};
      const Part next = after(part);
      // While these blocks are multiplied, so that neither decoding nor memory costs time of its own.
      const std::size_t steps = blocks_of_chunk(part) * ((token_tiles_ + 1) / 2);
      if (next.count > 0) decode_later(next, steps);
      set_ahead(next, steps);
      run_tokens(part, loads);
      part = next;
    }
    Tiles::release();
  }

 private:
  // One segment of a tile of weights or of two, of which the blocks before `done` are multiplied.
  struct Part {
    TileRun runs[2] = {};
    int count = 0;          // 0: none
    std::size_t first = 0;  // of the depth
    std::size_t blocks = 0;
    std::size_t done = 0;
  };

  static std::size_t blocks_of_chunk(const Part& part) {
    return std::min(kChunkBlocks, part.blocks - part.done);
  }

  Part after(const Part& part) {
    Part next = part;
    next.done += blocks_of_chunk(part);
    return next.done < next.blocks ? next : next_part();
  }

  std::byte* input(std::size_t token_tile, std::size_t block) const {
    return inputs_ + token_tile * kTileRows * row_bytes_ + block * kRowBytes;
  }

  // Two tiles where both are one segment each, and else the next segment of one.
  Part next_part() {
    if (tile_ >= weights_.tile_count()) return {};
    const std::size_t tile = tile_;
    const bool two = tile + 1 < weights_.tile_count();
    if constexpr (kDecoding == Decoding::kNone) {
      tile_ += two ? 2 : 1;
      return {{plain(tile), plain(two ? tile + 1 : tile)}, two ? 2 : 1, 0, depth_blocks_, 0};
    } else {
      const bool first = segment_ == nullptr;
      const std::byte* const at = first ? weights_.tile(tile) : segment_;
      const auto& segment = *reinterpret_cast<const SegmentHead*>(at);
      if (first && two && segment.last != 0 && one_segment(tile + 1)) {
        tile_ += 2;
        return {{coded(at, tile, false), coded(weights_.tile(tile + 1), tile + 1, false)},
                2,
                0,
                depth_blocks_,
                0};
      }
      if (segment.last != 0) ++tile_;
      segment_ = segment.last != 0 ? nullptr : at + sizeof segment + segment.blocks * kCodeBlockBytes;
      constexpr std::size_t kEach = blocks_of_packed(kDecoding);
      return {{coded(at, tile, !first), coded(at, tile, !first)},
              1,
              segment.first_block * kEach,
              segment.blocks * kEach,
              0};
    }
  }

  bool one_segment(std::size_t tile) const {
    return reinterpret_cast<const SegmentHead*>(weights_.tile(tile))->last != 0;
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

  // Fetched within so many steps: what is decoded after `next`; what is not decoded, `next` itself.
  void set_ahead(const Part& next, std::size_t steps) {
    std::size_t tile = tile_;
    if (kDecoding == Decoding::kNone && next.count > 0) tile = next.runs[0].first_row / kTileRows;
    const std::size_t count = weights_.tile_count();
    if (tile >= count || next.done > 0) {
      ahead_ = ahead_end_ = nullptr;
      return;
    }
    ahead_ = weights_.tile(tile);
    ahead_end_ = weights_.data + (*weights_.tiles)[std::min(tile + 2, count)];
    ahead_step_ = static_cast<std::size_t>(ahead_end_ - ahead_) / steps / 64 * 64 + 64;
  }

  void run_tokens(const Part& part, const std::byte* const (&loads)[2]) {
    const std::size_t some = blocks_of_chunk(part);
    const std::size_t block = part.first + part.done;
    const bool begin = part.done == 0;
    const bool end = part.done + some == part.blocks;
    for (std::size_t token = 0; token < token_tiles_; token += 2) {
      const bool two = token + 1 < token_tiles_;
      if (part.count == 2) {
        two ? run_chunk<2, 2>(part.runs, loads, block, some, token, begin, end)
            : run_chunk<2, 1>(part.runs, loads, block, some, token, begin, end);
      } else {
        two ? run_chunk<1, 2>(part.runs, loads, block, some, token, begin, end)
            : run_chunk<1, 1>(part.runs, loads, block, some, token, begin, end);
      }
    }
  }

  // Sets out a chunk to be decoded within `steps`; undecoded ones are loaded as they lie.
  void decode_later(const Part& part, std::size_t steps) {
    constexpr std::size_t kEach = blocks_of_packed(kDecoding);
    parity_ ^= 1;
    for (std::size_t i = 0; i < static_cast<std::size_t>(part.count); ++i) {
      pending_.packed[i] = part.runs[i].blocks + part.done / kEach * packed_block_bytes(kDecoding);
      pending_.to[i] = pending_.packed[i];
      if constexpr (kDecoding != Decoding::kNone)
        pending_.to[i] = decoded_ + (2 * parity_ + i) * kChunkBlocks * kBlockBytes;
    }
    pending_.each = blocks_of_chunk(part) / kEach;
    pending_.left = kDecoding == Decoding::kNone ? 0 : pending_.each * static_cast<std::size_t>(part.count);
    pending_.interval = pending_.left == 0 ? 1 : std::max<std::size_t>(1, steps / pending_.left);
    pending_.next = 0;
    pending_.step = 0;
  }

  // One packed block; false where none is left.
  bool decode_next() {
    if constexpr (kDecoding == Decoding::kNone) return false;
    if (pending_.left == 0) return false;
    const std::size_t tile = pending_.next / pending_.each;
    const std::size_t block = pending_.next % pending_.each;
    ++pending_.next;
    --pending_.left;
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
    std::size_t next = 0;
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
  std::size_t tile_ = 0;                // of the next part
  const std::byte* segment_ = nullptr;  // of that tile; nullptr: the first
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
