#include "matrix.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>

#include "../gemm/random_weights.hpp"

namespace k3gate::decode {
namespace {

constexpr std::size_t kFillerTiles = 32;
constexpr int kSpread = 2;

std::size_t tiles_of(std::size_t rows) { return (rows + gemm::kTileRows - 1) / gemm::kTileRows; }

// Another order of the same tiles for each matrix.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
  return value ^ value >> 31;
}

}  // namespace

void Order::add(std::size_t piece, std::size_t tile) {
  places_[piece].push_back(tiles_.size());
  tiles_.push_back({static_cast<std::uint32_t>(piece), static_cast<std::uint32_t>(tile)});
}

Order Order::plain(const std::vector<std::size_t>& rows) { return turns(rows, 0, 1); }

Order Order::turns(const std::vector<std::size_t>& rows, std::size_t turning, std::size_t turn) {
  Order order;
  order.rows_ = rows;
  order.places_.resize(rows.size());
  const std::size_t count = turning == 0 ? 0 : tiles_of(rows[0]);
  for (std::size_t first = 0; first < count; first += turn) {
    for (std::size_t piece = 0; piece < turning; ++piece) {
      for (std::size_t tile = first; tile < std::min(count, first + turn); ++tile) order.add(piece, tile);
    }
  }
  for (std::size_t piece = turning; piece < rows.size(); ++piece) {
    for (std::size_t tile = 0; tile < tiles_of(rows[piece]); ++tile) order.add(piece, tile);
  }
  return order;
}

// Random weights never cut a tile in segments, as their scales spread too little.
std::size_t tile_bytes(gemm::Format format, std::size_t depth) {
  static std::mutex lock;
  static std::map<std::pair<gemm::Format, std::size_t>, std::size_t> known;
  const std::lock_guard guard(lock);
  std::size_t& found = known[{format, depth}];
  if (found == 0) {
    std::mt19937_64 dice(1);
    std::vector<std::size_t> tiles;
    found =
        gemm::pack(gemm::random_weights(format, gemm::kTileRows, depth, kSpread, dice).view(), tiles).size();
  }
  return found;
}

Filler::Filler(gemm::Format format, std::size_t depth, std::uint64_t seed)
    : format_(format), depth_(depth), size_(tile_bytes(format, depth)) {
  std::mt19937_64 dice(seed);
  std::vector<std::size_t> tiles;
  bytes_ = gemm::pack(
      gemm::random_weights(format, kFillerTiles * gemm::kTileRows, depth, kSpread, dice).view(), tiles);
}

void Filler::fill(std::uint64_t key, const Shard& shard) const {
  auto* const to = const_cast<std::byte*>(shard.packed.data);
  for (std::size_t i = 0; i < shard.tiles; ++i) {
    const std::size_t tile = mixed(key * 0x9e3779b97f4a7c15ULL + shard.first_tile + i) % kFillerTiles;
    std::memcpy(to + i * size_, bytes_.data() + tile * size_, size_);
  }
}

void Matrix::shard(Memory& memory, const std::vector<std::size_t>& pools, std::size_t unit, std::size_t cut) {
  const std::size_t all = order_->tiles();
  const std::size_t units = (all + unit - 1) / unit;
  const std::size_t bytes = tile_bytes(format_, depth_);
  starts_.clear();
  first_.assign(1, 0);
  for (std::size_t thread = 0; thread <= pools.size(); ++thread)
    starts_.push_back(std::min(all, thread * units / pools.size() * unit));
  for (std::size_t thread = 0; thread < pools.size(); ++thread) {
    for (std::size_t tile = starts_[thread]; tile < starts_[thread + 1];) {
      const std::size_t end =
          cut == 0 ? starts_[thread + 1] : std::min(starts_[thread + 1], (tile / cut + 1) * cut);
      Shard shard;
      shard.first_tile = tile;
      shard.tiles = end - tile;
      shard.place = memory.take(pools[thread], part_, shard.tiles * bytes);
      for (std::size_t i = 0; i <= shard.tiles; ++i) shard.offsets.push_back(i * bytes);
      shards_.push_back(std::move(shard));
      tile = end;
    }
    first_.push_back(shards_.size());
  }
}

void Matrix::attach(const Memory& memory) {
  for (Shard& shard : shards_)
    shard.packed = {format_, shard.rows(), depth_, memory.at(shard.place), &shard.offsets};
}

void Matrix::fill(std::size_t thread, const Filler& filler) const {
  for (const Shard& shard : shards_of(thread)) filler.fill(key_, shard);
}

Shard& Matrix::shard_with(std::size_t tile) {
  const auto found =
      std::upper_bound(shards_.begin(), shards_.end(), tile,
                       [](std::size_t value, const Shard& one) { return value < one.first_tile; });
  return *std::prev(found);
}

void Matrix::load(std::size_t piece, const gemm::Source& source) {
  if (source.format != format_ || source.depth != depth_ || source.rows != order_->piece_rows(piece))
    throw std::invalid_argument("a tensor of another format or shape");
  std::vector<std::size_t> tiles;
  const std::vector<std::byte> bytes = gemm::pack(source, tiles);
  for (std::size_t tile = 0; tile + 1 < tiles.size(); ++tile) {
    const std::size_t stacked = order_->row(piece, tile * gemm::kTileRows) / gemm::kTileRows;
    Shard& shard = shard_with(stacked);
    const std::size_t at = stacked - shard.first_tile;
    const std::size_t size = tiles[tile + 1] - tiles[tile];
    const std::size_t had = shard.offsets[at + 1] - shard.offsets[at];
    if (size != had) {
      gemm::Buffer moved(shard.offsets.back() - had + size);
      std::memcpy(moved.data(), shard.packed.data, shard.offsets[at]);
      std::memcpy(moved.data() + shard.offsets[at] + size, shard.packed.data + shard.offsets[at + 1],
                  shard.offsets.back() - shard.offsets[at + 1]);
      for (std::size_t i = at + 1; i < shard.offsets.size(); ++i)
        shard.offsets[i] = shard.offsets[i] - had + size;
      shard.own = std::move(moved);
      shard.packed.data = shard.own.data();
    }
    std::memcpy(const_cast<std::byte*>(shard.packed.data) + shard.offsets[at], bytes.data() + tiles[tile],
                size);
  }
}

std::vector<double> Matrix::row(std::size_t stacked) const {
  const std::size_t tile = stacked / gemm::kTileRows;
  const Shard& shard = const_cast<Matrix*>(this)->shard_with(tile);
  return gemm::unpack_row(shard.packed, stacked - shard.first_row());
}

}  // namespace k3gate::decode
