// Packed matrices in shards: some tiles of rows each, in the memory of the thread that multiplies them.
//
// A matrix is a stack of pieces, tensors of the same depth, each filled up to whole tiles of 16 rows. Tiles
// of several pieces may take turns: gates with ups, for a thread to have both of what it activates; and q, k,
// v and gate of each head, for most of a head to be computed where it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../gemm/buffer.hpp"
#include "../gemm/weights.hpp"
#include "memory.hpp"

namespace k3gate::decode {

// The order of tiles in a stack; shared by all matrices of one kind.
class Order {
 public:
  struct Tile {
    std::uint32_t piece;
    std::uint32_t tile;  // within the piece
  };

  // `rows`: of each piece. Pieces one after the other.
  static Order plain(const std::vector<std::size_t>& rows);
  // `turn` tiles of each of the first `turning` pieces, which have the same rows, in turns; then the others.
  static Order turns(const std::vector<std::size_t>& rows, std::size_t turning, std::size_t turn);

  std::size_t tiles() const { return tiles_.size(); }
  const Tile& tile(std::size_t stacked) const { return tiles_[stacked]; }
  std::size_t piece_rows(std::size_t piece) const { return rows_[piece]; }
  std::size_t pieces() const { return rows_.size(); }
  // Where a row of a piece lies in the stack.
  std::size_t row(std::size_t piece, std::size_t row) const {
    return places_[piece][row / gemm::kTileRows] * gemm::kTileRows + row % gemm::kTileRows;
  }

 private:
  void add(std::size_t piece, std::size_t tile);

  std::vector<Tile> tiles_;
  std::vector<std::vector<std::size_t>> places_;
  std::vector<std::size_t> rows_;
};

std::size_t tile_bytes(gemm::Format format, std::size_t depth);

struct Shard {
  std::size_t first_tile = 0;
  std::size_t tiles = 0;
  Place place{};
  std::vector<std::size_t> offsets;
  gemm::Packed packed{};
  gemm::Buffer own;  // where tiles that were loaded are of other sizes than was planned

  std::size_t first_row() const { return first_tile * gemm::kTileRows; }
  std::size_t rows() const { return tiles * gemm::kTileRows; }
};

// Random tiles, packed once, that matrices are filled with.
class Filler {
 public:
  Filler(gemm::Format format, std::size_t depth, std::uint64_t seed);
  bool fits(gemm::Format format, std::size_t depth) const { return format == format_ && depth == depth_; }
  void fill(std::uint64_t key, const Shard& shard) const;

 private:
  gemm::Format format_;
  std::size_t depth_;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

class Matrix {
 public:
  Matrix() = default;
  // `key`: of the tiles that a fill takes.
  Matrix(gemm::Format format, std::size_t depth, std::shared_ptr<const Order> order, Part part,
         std::uint64_t key)
      : format_(format), depth_(depth), order_(std::move(order)), part_(part), key_(key) {}

  // Even shares for `pools.size()` threads, in order, of `unit` tiles at least and cut where a multiple of
  // `cut` tiles ends (0: nowhere); `pools`: where each thread's lie.
  void shard(Memory& memory, const std::vector<std::size_t>& pools, std::size_t unit, std::size_t cut);
  void attach(const Memory& memory);

  gemm::Format format() const { return format_; }
  std::size_t depth() const { return depth_; }
  std::size_t rows() const { return order_->tiles() * gemm::kTileRows; }  // with those that fill up tiles
  const Order& order() const { return *order_; }
  Part part() const { return part_; }
  std::span<const Shard> shards_of(std::size_t thread) const {
    return {shards_.data() + first_[thread], first_[thread + 1] - first_[thread]};
  }
  std::span<const Shard> shards() const { return shards_; }
  // The stacked row at which a thread's shards begin; one more entry than threads.
  std::size_t first_row_of(std::size_t thread) const { return starts_[thread] * gemm::kTileRows; }

  void fill(std::size_t thread, const Filler& filler) const;
  void load(std::size_t piece, const gemm::Source& source);
  std::vector<double> row(std::size_t stacked) const;

 private:
  Shard& shard_with(std::size_t tile);

  gemm::Format format_ = gemm::Format::kBf16;
  std::size_t depth_ = 0;
  std::shared_ptr<const Order> order_;
  Part part_ = Part::kAttention;
  std::uint64_t key_ = 0;
  std::vector<Shard> shards_;
  std::vector<std::size_t> first_;   // shard of each thread
  std::vector<std::size_t> starts_;  // tile of each thread
};

}  // namespace k3gate::decode
