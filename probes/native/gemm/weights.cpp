#include "weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace k3gate::gemm {
namespace {

constexpr int kNoScale = 255;  // E8M0: not a number

std::size_t up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit; }

unsigned byte_at(const std::byte* bytes, std::size_t index) {
  return std::to_integer<unsigned>(bytes[index]);
}

double from_bf16(const std::byte* values, std::size_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, values + 2 * index, 2);
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

// Where byte `byte` of a row lies in a block.
std::size_t place_in_block(std::size_t row, std::size_t byte) {
  return byte / kWordBytes * kLineBytes + row * kWordBytes + byte % kWordBytes;
}

// The bytes of one row, block after block.
void write_plain_row(const std::byte* values, std::size_t bytes, std::size_t row, std::byte* blocks) {
  for (std::size_t at = 0; at < bytes; at += kWordBytes)
    std::memcpy(blocks + at / kRowBytes * kBlockBytes + place_in_block(row, at % kRowBytes), values + at,
                kWordBytes);
}

float float_at(const std::byte* values, std::size_t index) {
  float value = 0;
  std::memcpy(&value, values + 4 * index, 4);
  return value;
}

// By arithmetic on the fields of FP16, as kernels convert by instructions or by bits.
double half_at(const std::byte* values) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, values, sizeof bits);
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double sign = bits >> 15 == 0 ? 1.0 : -1.0;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  return sign * std::ldexp(exponent == 0 ? fraction : 1024 + fraction, std::max(exponent, 1) - 25);
}

unsigned code_at(const Source& source, std::size_t row, std::size_t column) {
  const unsigned byte = byte_at(source.values, (row * source.depth + column) / 2);
  return column % 2 == 0 ? byte & 15 : byte >> 4;
}

// The exponents that occur in a run of groups of one row; groups of zeros alone have none.
struct Span {
  int least = kNoScale;
  int most = -1;

  void add(int exponent) {
    least = std::min(least, exponent);
    most = std::max(most, exponent);
  }
  bool fits() const { return most - least <= kMostShift; }
};

// A tile of MXFP4: which groups hold anything, and their exponents.
class CodeTile {
 public:
  CodeTile(const Source& source, std::size_t tile)
      : source_(source), first_row_(tile * kTileRows), groups_(source.depth / kGroup) {
    for (std::size_t row = 0; row < kTileRows; ++row) {
      exponents_[row].assign(up(source.depth, kCodeDepth) * kGroupsOfBlock, -1);
      if (first_row_ + row >= source.rows) continue;
      for (std::size_t group = 0; group < groups_; ++group) {
        const auto scale = static_cast<int>(byte_at(source.scales, (first_row_ + row) * groups_ + group));
        if (scale == kNoScale || holds_any(row, group)) exponents_[row][group] = scale;
      }
    }
  }

  std::size_t blocks() const { return exponents_[0].size() / kGroupsOfBlock; }

  // Appends the tile's segments.
  void write(std::vector<std::byte>& out) {
    std::size_t head = out.size();
    for (std::size_t block = 0; block < blocks();) {
      head = out.size();
      const std::size_t end = end_of_segment(block);
      if (end > block) {
        write_segment(out, block, end);
        block = end;
      } else {
        write_split(out, block, head);
        ++block;
      }
    }
    set_last(out, head);
  }

 private:
  using Spans = Span[kTileRows];

  bool holds_any(std::size_t row, std::size_t group) const {
    const std::byte* codes = source_.values + ((first_row_ + row) * source_.depth + group * kGroup) / 2;
    return std::any_of(codes, codes + kGroup / 2,
                       [](std::byte pair) { return (pair & std::byte{0x77}) != std::byte{0}; });
  }

  bool add_block(Spans& spans, std::size_t block) const {
    bool fits = true;
    for (std::size_t row = 0; row < kTileRows; ++row) {
      for (std::size_t i = 0; i < kGroupsOfBlock; ++i) {
        const int exponent = exponents_[row][block * kGroupsOfBlock + i];
        if (exponent >= 0) spans[row].add(exponent);
      }
      fits = fits && spans[row].fits();
    }
    return fits;
  }

  std::size_t end_of_segment(std::size_t block) const {
    Spans spans;
    std::size_t end = block;
    while (end < blocks() && add_block(spans, end)) ++end;
    return end;
  }

  static void set_last(std::vector<std::byte>& out, std::size_t head) {
    SegmentHead found;
    std::memcpy(&found, out.data() + head, sizeof found);
    found.last = 1;
    std::memcpy(out.data() + head, &found, sizeof found);
  }

  void write_segment(std::vector<std::byte>& out, std::size_t begin, std::size_t end) const {
    Spans spans;
    for (std::size_t block = begin; block < end; ++block) add_block(spans, block);
    append(out, begin, end, spans);
  }

  // A block whose groups of one row span too much: from the largest exponents down, each span a segment.
  void write_split(std::vector<std::byte>& out, std::size_t block, std::size_t& head) const {
    int top[kTileRows];
    for (std::size_t row = 0; row < kTileRows; ++row) top[row] = kNoScale;
    for (bool left = true; left;) {
      Spans spans;
      left = false;
      for (std::size_t row = 0; row < kTileRows; ++row) {
        const int* const groups = &exponents_[row][block * kGroupsOfBlock];
        int most = -1;
        for (std::size_t i = 0; i < kGroupsOfBlock; ++i) {
          if (groups[i] <= top[row]) most = std::max(most, groups[i]);
        }
        for (std::size_t i = 0; most >= 0 && i < kGroupsOfBlock; ++i) {
          if (groups[i] < 0 || groups[i] > top[row]) continue;
          if (groups[i] >= most - kMostShift) {
            spans[row].add(groups[i]);
          } else {
            left = true;
          }
        }
        top[row] = most < 0 ? -1 : most - kMostShift - 1;
      }
      head = out.size();
      append(out, block, block + 1, spans);
    }
  }

  void append(std::vector<std::byte>& out, std::size_t begin, std::size_t end, const Spans& spans) const {
    const std::size_t head_at = out.size();
    out.resize(head_at + sizeof(SegmentHead) + (end - begin) * kCodeBlockBytes);
    SegmentHead head{};
    head.first_block = static_cast<std::uint32_t>(begin);
    head.blocks = static_cast<std::uint32_t>(end - begin);
    for (std::size_t row = 0; row < kTileRows; ++row) {
      const Span& span = spans[row];
      // Codes are doubled, so the power is one less.
      if (span.most >= 0) head.rows.scale[row] = std::ldexp(1.0F, span.least - 128);
      if (span.most == kNoScale) head.rows.scale[row] = std::numeric_limits<float>::quiet_NaN();
      for (std::size_t block = begin; block < end; ++block) {
        std::byte* const to = out.data() + head_at + sizeof head + (block - begin) * kCodeBlockBytes;
        head.rows.sum[row] += write_row(to, row, block, span);
      }
    }
    std::memcpy(out.data() + head_at, &head, sizeof head);
  }

  // Returns the sum of the whole numbers.
  std::int32_t write_row(std::byte* block_at, std::size_t row, std::size_t block, const Span& span) const {
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < kGroupsOfBlock; ++i) {
      const std::size_t group = block * kGroupsOfBlock + i;
      const int exponent = exponents_[row][group];
      if (exponent < span.least || exponent > span.most) continue;
      const int shift = exponent - span.least;
      block_at[kBlockBytes + i * kTileRows + row] = static_cast<std::byte>(shift << 4);
      for (std::size_t j = 0; j < kGroup; ++j) {
        const unsigned code = code_at(source_, first_row_ + row, group * kGroup + j);
        sum += kDoubledCodes[code] * (1 << shift);
        block_at[place_in_block(row, i % 2 * kGroup + j)] |= static_cast<std::byte>(i < 2 ? code : code << 4);
      }
    }
    return sum;
  }

  const Source& source_;
  std::size_t first_row_;
  std::size_t groups_;
  std::vector<int> exponents_[kTileRows];  // -1: nothing but zeros
};

void pack_int8(const Source& source, std::size_t tile, std::vector<std::byte>& out) {
  const std::size_t blocks = up(source.depth, kRowBytes);
  const std::size_t at = out.size();
  out.resize(at + sizeof(RowsHead) + blocks * kBlockBytes);
  RowsHead head{};
  for (std::size_t i = 0; i < kTileRows && tile * kTileRows + i < source.rows; ++i) {
    const std::size_t row = tile * kTileRows + i;
    head.scale[i] = float_at(source.scales, row);
    const std::byte* const values = source.values + row * source.depth;
    for (std::size_t k = 0; k < source.depth; ++k) head.sum[i] += static_cast<std::int8_t>(values[k]);
    write_plain_row(values, source.depth, i, out.data() + at + sizeof head);
  }
  std::memcpy(out.data() + at, &head, sizeof head);
}

void pack_bf16(const Source& source, std::size_t tile, std::vector<std::byte>& out) {
  const std::size_t row_bytes = 2 * source.depth;  // a multiple of 64, as depths are of 32
  const std::size_t at = out.size();
  out.resize(at + row_bytes / kRowBytes * kBlockBytes);
  for (std::size_t i = 0; i < kTileRows && tile * kTileRows + i < source.rows; ++i) {
    write_plain_row(source.values + (tile * kTileRows + i) * row_bytes, row_bytes, i, out.data() + at);
  }
}

void pack_q8_0(const Source& source, std::size_t tile, std::vector<std::byte>& out) {
  const std::size_t groups = source.depth / kGroup;
  const std::size_t at = out.size();
  out.resize(at + up(source.depth, kScaledDepth) * kScaledBlockBytes);
  for (std::size_t i = 0; i < kTileRows && tile * kTileRows + i < source.rows; ++i) {
    const std::byte* from = source.values + (tile * kTileRows + i) * groups * kStoredGroup;
    for (std::size_t group = 0; group < groups; ++group, from += kStoredGroup) {
      const std::size_t half = group % (kScaledDepth / kGroup);
      std::byte* const block = out.data() + at + group / (kScaledDepth / kGroup) * kScaledBlockBytes;
      std::memcpy(block + kBlockBytes + (half * kTileRows + i) * kHalfBytes, from, kHalfBytes);
      for (std::size_t k = 0; k < kGroup; ++k)
        block[place_in_block(i, half * kGroup + k)] = from[kHalfBytes + k] ^ std::byte{kRaised};
    }
  }
}

void unpack_q8_0(const std::byte* tile, std::size_t row, std::vector<double>& values) {
  for (std::size_t k = 0; k < values.size(); ++k) {
    const std::byte* const block = tile + k / kScaledDepth * kScaledBlockBytes;
    const std::size_t inside = k % kScaledDepth;
    const double scale = half_at(block + kBlockBytes + (inside / kGroup * kTileRows + row) * kHalfBytes);
    values[k] = scale * (static_cast<int>(byte_at(block, place_in_block(row, inside))) - int{kRaised});
  }
}

void unpack_codes(const std::byte* tile, std::size_t row, std::vector<double>& values) {
  for (SegmentHead head{}; head.last == 0;) {
    std::memcpy(&head, tile, sizeof head);
    tile += sizeof head;
    for (std::size_t block = 0; block < head.blocks; ++block, tile += kCodeBlockBytes) {
      for (std::size_t k = 0; k < kCodeDepth; ++k) {
        const std::size_t column = (head.first_block + block) * kCodeDepth + k;
        if (column >= values.size()) break;
        const unsigned pair = byte_at(tile, place_in_block(row, k % kRowBytes));
        const unsigned code = k < kRowBytes ? pair & 15 : pair >> 4;
        const unsigned shift = byte_at(tile, kBlockBytes + k / kGroup * kTileRows + row) >> 4;
        values[column] += static_cast<double>(kDoubledCodes[code] * (1 << shift)) *
                          static_cast<double>(head.rows.scale[row]);
      }
    }
  }
}

}  // namespace

std::string_view name_of(Format format) {
  switch (format) {
    case Format::kMxfp4:
      return "mxfp4";
    case Format::kInt8:
      return "int8";
    case Format::kQ8_0:
      return "q8_0";
    case Format::kBf16:
      break;
  }
  return "bf16";
}

std::span<const Format> formats() {
  static constexpr std::array kAll = {Format::kMxfp4, Format::kInt8, Format::kBf16, Format::kQ8_0};
  return kAll;
}

std::size_t value_bytes(Format format, std::size_t rows, std::size_t depth) {
  const std::size_t weights = rows * depth;
  switch (format) {
    case Format::kMxfp4:
      return weights / 2;
    case Format::kInt8:
      return weights;
    case Format::kQ8_0:
      return weights / kGroup * kStoredGroup;
    case Format::kBf16:
      break;
  }
  return 2 * weights;
}

std::size_t scale_bytes(Format format, std::size_t rows, std::size_t depth) {
  if (format == Format::kMxfp4) return rows * depth / kGroup;
  return format == Format::kInt8 ? rows * sizeof(float) : 0;
}

double format_bytes(Format format, std::size_t rows, std::size_t depth) {
  return static_cast<double>(value_bytes(format, rows, depth) + scale_bytes(format, rows, depth));
}

std::vector<std::byte> pack(const Source& source, std::vector<std::size_t>& tiles) {
  if (source.depth == 0 || source.depth % kGroup != 0 || source.rows == 0)
    throw std::invalid_argument("weights need rows, and a depth that is a multiple of 32");
  std::vector<std::byte> out;
  tiles.assign(1, 0);
  for (std::size_t tile = 0; tile < up(source.rows, kTileRows); ++tile) {
    switch (source.format) {
      case Format::kMxfp4:
        CodeTile(source, tile).write(out);
        break;
      case Format::kInt8:
        pack_int8(source, tile, out);
        break;
      case Format::kBf16:
        pack_bf16(source, tile, out);
        break;
      case Format::kQ8_0:
        pack_q8_0(source, tile, out);
        break;
    }
    tiles.push_back(out.size());
  }
  return out;
}

std::vector<double> unpack_row(const Packed& packed, std::size_t row) {
  std::vector<double> values(packed.depth, 0.0);
  const std::byte* const tile = packed.tile(row / kTileRows);
  const std::size_t inside = row % kTileRows;
  if (packed.format == Format::kMxfp4) {
    unpack_codes(tile, inside, values);
    return values;
  }
  if (packed.format == Format::kQ8_0) {
    unpack_q8_0(tile, inside, values);
    return values;
  }
  const bool bytes = packed.format == Format::kInt8;
  const std::byte* const blocks = tile + (bytes ? sizeof(RowsHead) : 0);
  const double scale = bytes ? static_cast<double>(float_at(tile, inside)) : 1.0;
  const std::size_t columns = bytes ? kRowBytes : kRowBytes / 2;
  for (std::size_t k = 0; k < packed.depth; ++k) {
    const std::byte* const at =
        blocks + k / columns * kBlockBytes + place_in_block(inside, k % columns * (kRowBytes / columns));
    values[k] = bytes ? scale * static_cast<double>(static_cast<std::int8_t>(*at)) : from_bf16(at, 0);
  }
  return values;
}

std::vector<double> source_row(const Source& source, std::size_t row) {
  std::vector<double> values(source.depth);
  for (std::size_t k = 0; k < source.depth; ++k) {
    switch (source.format) {
      case Format::kMxfp4: {
        const unsigned scale = byte_at(source.scales, (row * source.depth + k) / kGroup);
        values[k] = scale == static_cast<unsigned>(kNoScale)
                        ? std::numeric_limits<double>::quiet_NaN()
                        : std::ldexp(static_cast<double>(kDoubledCodes[code_at(source, row, k)]),
                                     static_cast<int>(scale) - 128);
        break;
      }
      case Format::kInt8:
        values[k] = static_cast<double>(float_at(source.scales, row)) *
                    static_cast<double>(static_cast<std::int8_t>(source.values[row * source.depth + k]));
        break;
      case Format::kBf16:
        values[k] = from_bf16(source.values, row * source.depth + k);
        break;
      case Format::kQ8_0: {
        const std::byte* const group = source.values + (row * source.depth + k) / kGroup * kStoredGroup;
        values[k] = half_at(group) * static_cast<std::int8_t>(group[kHalfBytes + k % kGroup]);
        break;
      }
    }
  }
  return values;
}

}  // namespace k3gate::gemm
