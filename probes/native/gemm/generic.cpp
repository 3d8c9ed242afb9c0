// Plain C++ for any CPU; loops that compilers turn into the vectors of the baseline (SSE2, Advanced SIMD).
#include <array>
#include <cstring>

#include "gemm.hpp"
#include "rounding.hpp"

#define K3_TARGET

namespace k3gate::gemm {
namespace {

#include "activations.inl"

std::int32_t dot(const std::int8_t* __restrict a, const std::int8_t* __restrict b, std::size_t count) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<std::int16_t>(a[i] * b[i]);
  return sum;
}

// Eight sums in turn, as the order of float additions is not a compiler's to change.
float dot(const std::uint16_t* __restrict a, const std::uint16_t* __restrict b, std::size_t count) {
  float sums[8] = {};
  for (std::size_t i = 0; i < count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += from_bf16(a[i + j]) * from_bf16(b[i + j]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

const std::int8_t* rounded(const Call& call, std::size_t columns) {
  auto* const to = call.workspace->activations();
  round_activations(call.activations, call.tokens, call.weights->depth, columns, 0,
                    reinterpret_cast<std::uint8_t*>(to), call.workspace->scales());
  return reinterpret_cast<const std::int8_t*>(to);
}

// One row of a run of blocks of codes, as bytes.
void decode_row(const std::byte* blocks, std::size_t count, std::size_t row, std::int8_t* to) {
  for (std::size_t block = 0; block < count; ++block, blocks += kCodeBlockBytes, to += kCodeDepth) {
    std::uint8_t codes[kRowBytes];
    for (std::size_t line = 0; line < kLines; ++line)
      std::memcpy(codes + line * kWordBytes, blocks + line * kLineBytes + row * kWordBytes, kWordBytes);
    const auto* const shifts = reinterpret_cast<const std::uint8_t*>(blocks + kBlockBytes + row);
    for (std::size_t j = 0; j < kRowBytes; ++j) {
      const std::int8_t* const low = kCodeTable.values + shifts[j / kGroup * kTileRows];
      const std::int8_t* const high = kCodeTable.values + shifts[(2 + j / kGroup) * kTileRows];
      to[j] = low[codes[j] & 15U];
      to[kRowBytes + j] = high[codes[j] >> 4U];
    }
  }
}

void run_mxfp4(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t columns = (weights.depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  const std::int8_t* const inputs = rounded(call, columns);
  const float* const scales = call.workspace->scales();
  auto* const decoded = reinterpret_cast<std::int8_t*>(call.workspace->decoded());
  for (std::size_t row = 0; row < weights.rows; ++row) {
    const std::byte* at = weights.tile(row / kTileRows);
    for (bool last = false, first = true; !last; first = false) {
      SegmentHead head;
      std::memcpy(&head, at, sizeof head);
      decode_row(at + sizeof head, head.blocks, row % kTileRows, decoded);
      for (std::size_t token = 0; token < call.tokens; ++token) {
        const std::int32_t sum =
            dot(decoded, inputs + token * columns + head.first_block * kCodeDepth, head.blocks * kCodeDepth);
        const float value = static_cast<float>(sum) * head.rows.scale[row % kTileRows] * scales[token];
        float& to = call.output[token * weights.rows + row];
        to = first ? value : to + value;
      }
      last = head.last != 0;
      at += sizeof head + head.blocks * kCodeBlockBytes;
    }
  }
}

// A row of a tile lies in pieces of 4 bytes; put together first, as it is used for many tokens.
const std::byte* gather_row(const std::byte* blocks, std::size_t count, std::size_t row, std::byte* to) {
  for (std::size_t line = 0; line < count * kLines; ++line)
    std::memcpy(to + line * kWordBytes, blocks + line * kLineBytes + row * kWordBytes, kWordBytes);
  return to;
}

void run_int8(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t columns = (weights.depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  const std::size_t blocks = (weights.depth + kRowBytes - 1) / kRowBytes;
  const std::int8_t* const inputs = rounded(call, columns);
  const float* const scales = call.workspace->scales();
  for (std::size_t row = 0; row < weights.rows; ++row) {
    RowsHead head;
    std::memcpy(&head, weights.tile(row / kTileRows), sizeof head);
    const auto* const values = reinterpret_cast<const std::int8_t*>(gather_row(
        weights.tile(row / kTileRows) + sizeof head, blocks, row % kTileRows, call.workspace->decoded()));
    for (std::size_t token = 0; token < call.tokens; ++token) {
      const std::int32_t sum = dot(values, inputs + token * columns, blocks * kRowBytes);
      call.output[token * weights.rows + row] =
          static_cast<float>(sum) * head.scale[row % kTileRows] * scales[token];
    }
  }
}

void run_bf16(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t blocks = weights.depth / kGroup;
  for (std::size_t row = 0; row < weights.rows; ++row) {
    const auto* const values = reinterpret_cast<const std::uint16_t*>(
        gather_row(weights.tile(row / kTileRows), blocks, row % kTileRows, call.workspace->decoded()));
    for (std::size_t token = 0; token < call.tokens; ++token)
      call.output[token * weights.rows + row] =
          dot(values, call.activations + token * weights.depth, weights.depth);
  }
}

void run_q8_0(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t blocks = (weights.depth + kScaledDepth - 1) / kScaledDepth;
  const std::size_t token_bytes = padded_row(blocks * kScaledInputs);
  const std::byte* const inputs = call.workspace->activations();
  round_groups(call.activations, call.tokens, weights.depth, 0, call.workspace->activations(), token_bytes);
  for (std::size_t row = 0; row < weights.rows; ++row) {
    for (std::size_t token = 0; token < call.tokens; ++token) call.output[token * weights.rows + row] = 0;
    const std::byte* block = weights.tile(row / kTileRows);
    for (std::size_t i = 0; i < blocks; ++i, block += kScaledBlockBytes) {
      std::byte raised[kScaledDepth];
      std::int8_t values[kScaledDepth];
      gather_row(block, 1, row % kTileRows, raised);
      for (std::size_t k = 0; k < kScaledDepth; ++k)
        values[k] = static_cast<std::int8_t>(raised[k] ^ std::byte{kRaised});
      for (std::size_t half = 0; half < kScaledDepth / kGroup; ++half) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, block + kBlockBytes + (half * kTileRows + row % kTileRows) * kHalfBytes,
                    sizeof bits);
        const float scale = from_half(bits);
        for (std::size_t token = 0; token < call.tokens; ++token) {
          const std::byte* const input = inputs + token * token_bytes + i * kScaledInputs;
          ActivationGroup group;
          std::memcpy(&group, input + kScaledDepth + half * sizeof group, sizeof group);
          const std::int32_t sum = dot(values + half * kGroup,
                                       reinterpret_cast<const std::int8_t*>(input) + half * kGroup, kGroup);
          call.output[token * weights.rows + row] += static_cast<float>(sum) * scale * group.scale;
        }
      }
    }
  }
}

constexpr std::array kVariants = {
    Variant{Format::kMxfp4, Path::kGeneric, Activations::kInt8, run_mxfp4},
    Variant{Format::kInt8, Path::kGeneric, Activations::kInt8, run_int8},
    Variant{Format::kQ8_0, Path::kGeneric, Activations::kInt8Groups, run_q8_0},
    Variant{Format::kBf16, Path::kGeneric, Activations::kBf16, run_bf16},
};

}  // namespace

std::span<const Variant> family::generic() { return kVariants; }

}  // namespace k3gate::gemm
