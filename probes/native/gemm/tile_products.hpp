// Products by tiles, the same code over the CPU's tiles and over their model.
//
// Activations are the first operand, rounded or copied once to blocks of 16 tokens x 64 bytes; weights the
// second, as blocks lie packed or decoded; so a tile of sums has tokens down and rows of weights across, as
// the output. Two tiles of tokens meet two of weights: four products for four loads. Sums stay in their tiles
// along the depth, as loading them anew costs more than weights from the second cache; only depths beyond a
// chunk's are cut. While one chunk is multiplied the next is decoded, and the tiles after it are fetched.
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

// Tiles of weights at once.
inline constexpr int kMostRuns = 2;

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
    sums_ = call.workspace->sums();
    decoded_ = call.workspace->decoded();
    token_scales_ = kBytes ? call.workspace->scales() : nullptr;
  }

  void run() {
    Help::prepare_blocks(kBytes, call_, depth_blocks_, inputs_);
    Tiles::configure(kWholeTiles);
    Part part = next_part();
    decode_later(part, 1);
    while (part.count > 0) {
      while (decode_next()) {
      }
      const std::byte* loads[kMostRuns];
      std::copy(std::begin(pending_.to), std::end(pending_.to), loads);
      if (part.done == 0) set_ahead(part.blocks * ((token_tiles_ + 1) / 2));
      const Part next = after(part);
      // While these blocks are multiplied, so that neither decoding nor memory costs time of its own.
      if (next.count > 0) decode_later(next, blocks_of_chunk(part) * ((token_tiles_ + 1) / 2));
      run_tokens(part, loads);
      part = next;
    }
    Tiles::release();
    Help::complete();
  }

 private:
  // One segment of a tile of weights or of several, of which the blocks before `done` are multiplied.
  struct Part {
    TileRun runs[kMostRuns] = {};
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

  const std::byte* input(std::size_t token_tile, std::size_t block) const {
    return inputs_ + (token_tile * depth_blocks_ + block) * kBlockBytes;
  }

  // Two tiles where both are one segment each, or the next segment of one.
  Part next_part() {
    Part part;
    const std::size_t left = weights_.tile_count() - tile_;
    if (segment_ == nullptr) {
      while (part.count < kMostRuns && static_cast<std::size_t>(part.count) < left &&
             one_segment(tile_ + static_cast<std::size_t>(part.count))) {
        const std::size_t tile = tile_ + static_cast<std::size_t>(part.count);
        part.runs[part.count++] = whole(tile);
      }
      part.blocks = depth_blocks_;
      tile_ += static_cast<std::size_t>(part.count);
    }
    if constexpr (kDecoding != Decoding::kNone) {
      if (part.count == 0 && left > 0) {
        const bool first = segment_ == nullptr;
        const std::byte* const at = first ? weights_.tile(tile_) : segment_;
        const auto& segment = *reinterpret_cast<const SegmentHead*>(at);
        constexpr std::size_t kEach = blocks_of_packed(kDecoding);
        part.runs[part.count++] = coded(at, tile_, !first);
        part.first = segment.first_block * kEach;
        part.blocks = segment.blocks * kEach;
        if (segment.last != 0) ++tile_;
        segment_ = segment.last != 0 ? nullptr : at + sizeof segment + segment.blocks * kCodeBlockBytes;
      }
    }
    return part;
  }

  bool one_segment(std::size_t tile) const {
    if constexpr (kDecoding == Decoding::kNone) return true;
    return reinterpret_cast<const SegmentHead*>(weights_.tile(tile))->last != 0;
  }

  TileRun whole(std::size_t tile) const {
    const std::byte* const at = weights_.tile(tile);
    if constexpr (kDecoding != Decoding::kNone) {
      return coded(at, tile, false);
    } else if constexpr (kBytes) {
      return {at + sizeof(RowsHead), reinterpret_cast<const RowsHead*>(at)->scale, tile * kTileRows, false};
    } else {
      return {at, nullptr, tile * kTileRows, false};
    }
  }

  TileRun coded(const std::byte* at, std::size_t tile, bool add) const {
    return {at + sizeof(SegmentHead), reinterpret_cast<const RowsHead*>(at)->scale, tile * kTileRows, add};
  }

  // Fetched within so many steps: the tiles after those that have begun.
  void set_ahead(std::size_t steps) {
    const std::size_t count = weights_.tile_count();
    ahead_ = weights_.data + (*weights_.tiles)[std::min(tile_, count)];
    ahead_end_ = weights_.data + (*weights_.tiles)[std::min(tile_ + kMostRuns, count)];
    ahead_step_ = static_cast<std::size_t>(ahead_end_ - ahead_) / steps / 64 * 64 + 64;
  }

  void run_tokens(const Part& part, const std::byte* const* loads) {
    for (std::size_t token = 0; token < token_tiles_; token += 2) {
      const bool two = token + 1 < token_tiles_;
      if (part.count == 2) {
        two ? run_chunk<2, 2>(part, loads, token) : run_chunk<2, 1>(part, loads, token);
      } else {
        two ? run_chunk<1, 2>(part, loads, token) : run_chunk<1, 1>(part, loads, token);
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
      if constexpr (kDecoding != Decoding::kNone) pending_.to[i] = decoded(i);
    }
    pending_.each = blocks_of_chunk(part) / kEach;
    pending_.left = kDecoding == Decoding::kNone ? 0 : pending_.each * static_cast<std::size_t>(part.count);
    pending_.all = pending_.left;
    pending_.steps = steps;
    pending_.due = 0;
    pending_.next = 0;
  }

  std::byte* decoded(std::size_t tile) const {
    return decoded_ + (kMostRuns * parity_ + tile) * kChunkBlocks * kBlockBytes;
  }

  // One packed block; false where none is left.
  bool decode_next() {
    if constexpr (kDecoding == Decoding::kNone) return false;
    if (pending_.left == 0) return false;
    const std::size_t tile = pending_.next / pending_.each;
    const std::size_t block = pending_.next % pending_.each;
    ++pending_.next;
    --pending_.left;
    Help::decode(kDecoding, pending_.packed[tile] + block * packed_block_bytes(kDecoding), 1,
                 decoded(tile) + block * blocks_of_packed(kDecoding) * kBlockBytes);
    return true;
  }

  // What falls to one step of those within which all is to be decoded.
  void decode_some() {
    if constexpr (kDecoding == Decoding::kNone) return;
    for (pending_.due += pending_.all; pending_.due >= pending_.steps; pending_.due -= pending_.steps)
      decode_next();
  }

  template <int C, int A, int B>
  static void dot() {
    if constexpr (kBytes) {
      Tiles::template dot_bytes<C, A, B>();
    } else {
      Tiles::template dot_bf16<C, A, B>();
    }
  }

  // Sums 0 to 3, activations 4 and 5, weights 6 and 7. Few tokens keep their sums in tiles along the depth.
  template <int kRuns, int kTokens>
  void run_chunk(const Part& part, const std::byte* const* loads, std::size_t token) {
    std::byte* const kept = sums_ + token / 2 * 4 * kBlockBytes;
    const std::size_t count = blocks_of_chunk(part);
    const bool end = part.done + count == part.blocks;
    if (part.done == 0) {
      zero_sums<kRuns, kTokens>();
    } else if (token_tiles_ > 2) {
      load_sums<kRuns, kTokens>(kept);
    }
    const std::byte* first = input(token, part.first + part.done);
    const std::byte* second = input(token + kTokens - 1, part.first + part.done);
    for (std::size_t i = 0; i < count; ++i, first += kBlockBytes, second += kBlockBytes) {
      decode_some();
      for (std::size_t line = 0; line < ahead_step_ && ahead_ < ahead_end_; line += 64, ahead_ += 64)
        __builtin_prefetch(ahead_, 0, 2);
      Tiles::template load<6>(loads[0] + i * kBlockBytes, kLineBytes);
      Tiles::template load<4>(first, kLineBytes);
      dot<0, 4, 6>();
      if constexpr (kRuns == 2) {
        Tiles::template load<7>(loads[1] + i * kBlockBytes, kLineBytes);
        dot<1, 4, 7>();
      }
      if constexpr (kTokens == 2) {
        Tiles::template load<5>(second, kLineBytes);
        dot<2, 5, 6>();
        if constexpr (kRuns == 2) dot<3, 5, 7>();
      }
    }
    if (!end && token_tiles_ <= 2) return;
    store_sums<kRuns, kTokens>(kept);
    if (!end) return;
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (std::size_t r = 0; r < kRuns; ++r)
        Help::finish(kBytes, kept + (2 * t + r) * kBlockBytes, part.runs[r], token + t, token_scales_, call_);
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
    const std::byte* packed[kMostRuns] = {};
    const std::byte* to[kMostRuns] = {};
    std::size_t each = 1;  // packed blocks of one tile
    std::size_t next = 0;
    std::size_t left = 0;
    std::size_t all = 0;
    std::size_t steps = 1;  // within which all are decoded
    std::size_t due = 0;    // in parts of a step
  };

  const Call& call_;
  const Packed& weights_;
  std::size_t depth_blocks_ = 0;  // of 64 bytes a row
  std::size_t token_tiles_ = 0;
  std::byte* inputs_ = nullptr;
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
