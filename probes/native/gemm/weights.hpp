// Weights as a checkpoint stores them, and packed as the kernels read them: one stream of tiles of 16 rows.
//
// MXFP4, as kernels read it (4.25 bits a weight, and a head of 192 bytes for each 16 rows):
// all codes of a row are doubled (so whole numbers, E2M1 being halves) and shifted left by what their group's
// exponent exceeds the row's least one. Where that is at most 3, the row is whole numbers within +-96: INT8,
// exactly, with one power of two a row. A tile whose rows span more is cut in segments along the depth, each
// with its own powers, and a block that spans too much within itself is stored once for each span, the other
// codes zero. So every matrix is exact.
//
// A block is 16 lines of 64 bytes, and a line has 4 bytes of each of the 16 rows, one row after the other: so
// sums of 16 rows lie in the lanes of a register, and a block of bytes or BF16 is the second operand of a
// tile product as it lies.
//
//   segment  SegmentHead, then `blocks` blocks of 1088 bytes for 16 rows x 128 columns:
//            16 lines of codes: byte i of a row in line j has column 4 j + i in its low nibble, column
//            64 + 4 j + i in its high one
//            4 x 16 bytes: of each group of 32 columns the shifts of the 16 rows, times 16
//
// INT8: RowsHead, then depth / 64 blocks, line j with columns 4 j to 4 j + 3. BF16: depth / 32 blocks, line j
// with columns 2 j and 2 j + 1. Depths and rows that are no multiple are filled up with zeros.
//
// Q8_0, ggml's: no head; depth / 64 blocks of 1088 bytes, line j with columns 4 j to 4 j + 3, each raised by
// 128, for instructions that multiply unsigned by signed bytes; then 2 x 16 FP16: of each group of 32 columns
// the scales of the 16 rows. So it takes the 34 bytes for 32 weights that it takes in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace k3gate::gemm {

enum class Format { kMxfp4, kInt8, kBf16, kQ8_0 };

// "mxfp4", "int8", "bf16", "q8_0".
std::string_view name_of(Format format);

// All of them.
std::span<const Format> formats();

// As a checkpoint stores them, row-major.
struct Source {
  Format format;
  std::size_t rows;
  std::size_t depth;  // a multiple of 32
  // MXFP4: [rows, depth / 2], low nibble column 2j; INT8: [rows, depth]; BF16; Q8_0: [rows, depth / 32] of 34
  // bytes, an FP16 scale before 32 whole numbers, as in a GGUF file.
  const std::byte* values;
  const std::byte* scales;  // MXFP4: E8M0 [rows, depth / 32]; INT8: float32 [rows]; others: none
};

inline constexpr std::size_t kTileRows = 16;
inline constexpr std::size_t kLines = 16;
inline constexpr std::size_t kLineBytes = 64;
inline constexpr std::size_t kWordBytes = kLineBytes / kTileRows;  // of a row in one line
inline constexpr std::size_t kBlockBytes = kLines * kLineBytes;
inline constexpr std::size_t kRowBytes = kBlockBytes / kTileRows;  // of a row in one block
inline constexpr std::size_t kGroup = 32;                          // columns with one scale of MXFP4 and Q8_0
inline constexpr std::size_t kCodeDepth = 128;                     // columns of an MXFP4 block
inline constexpr std::size_t kGroupsOfBlock = kCodeDepth / kGroup;
inline constexpr std::size_t kCodeBlockBytes = kBlockBytes + kTileRows * kGroupsOfBlock;
inline constexpr int kMostShift = 3;
inline constexpr std::size_t kHalfBytes = 2;                      // an FP16 number
inline constexpr std::size_t kStoredGroup = kHalfBytes + kGroup;  // bytes of 32 weights of Q8_0 in a file
inline constexpr std::size_t kScaledDepth = kRowBytes;            // columns of a Q8_0 block
inline constexpr std::size_t kScaledBlockBytes =
    kBlockBytes + kTileRows * kHalfBytes * (kScaledDepth / kGroup);
inline constexpr unsigned kRaised = 128;  // what is added to each of its weights

struct RowsHead {
  float scale[kTileRows];       // of MXFP4: of the whole numbers of each row; NaN where one of the source is
  std::int32_t sum[kTileRows];  // of the whole numbers
};
static_assert(sizeof(RowsHead) == 128);

// Of weights that have none.
inline constexpr RowsHead kNoHead = [] {
  RowsHead head{};
  for (float& scale : head.scale) scale = 1;
  return head;
}();

struct SegmentHead {
  RowsHead rows;
  std::uint32_t first_block;  // in blocks of 128 columns
  std::uint32_t blocks;
  std::uint32_t last;  // 1: the tile ends with this segment
  std::uint32_t unused[13];
};
static_assert(sizeof(SegmentHead) == 192);

// Packed weights; the memory is somebody else's.
struct Packed {
  Format format;
  std::size_t rows;
  std::size_t depth;
  const std::byte* data;                  // 64-byte aligned
  const std::vector<std::size_t>* tiles;  // where each tile of 16 rows begins, and the end of the last one

  std::size_t tile_count() const { return tiles->size() - 1; }
  const std::byte* tile(std::size_t index) const { return data + (*tiles)[index]; }
};

// Bytes that the format takes for so many weights: what a rate in bytes counts. MXFP4 17 for 32; Q8_0 34 for
// 32; INT8 one each and a float a row; BF16 two each.
double format_bytes(Format format, std::size_t rows, std::size_t depth);

// Bytes of a source's values and of its scales.
std::size_t value_bytes(Format format, std::size_t rows, std::size_t depth);
std::size_t scale_bytes(Format format, std::size_t rows, std::size_t depth);

// Packs; `tiles` gets the offsets. Throws std::invalid_argument where the depth is no multiple of 32.
std::vector<std::byte> pack(const Source& source, std::vector<std::size_t>& tiles);

// One packed row as float64 [depth]: read from the packed bytes by other code than the kernels'.
std::vector<double> unpack_row(const Packed& packed, std::size_t row);

// One row of a source as float64 [depth]; NaN in a group whose scale is none: of MXFP4 255.
std::vector<double> source_row(const Source& source, std::size_t row);

inline constexpr std::int8_t kMostCode = 12;
inline constexpr std::int8_t kDoubledCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The doubled code c shifted by s at 16 s + c.
struct alignas(64) CodeTable {
  std::int8_t values[64] = {};

  constexpr CodeTable() {
    for (int i = 0; i < 64; ++i)
      values[i] = static_cast<std::int8_t>(kDoubledCodes[i % 16] * (1 << (i / 16)));
  }
};
inline constexpr CodeTable kCodeTable;

}  // namespace k3gate::gemm
