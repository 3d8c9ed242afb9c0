// MXFP4 by rows: codes become signed bytes by a table in a register.
//
// Lanes give besides:  Vector low(codes), high(codes): the nibbles as bytes
//                      Vector look_up(table, nibbles)
#pragma once

#include "activations.inl"
#include "rows.inl"

// Decoded in registers and multiplied at once: for few tokens, where each code is used few times.
template <class Lanes, int Rows, int Tokens>
K3_TARGET __attribute__((noinline)) void run_codes(const std::byte* blocks, std::size_t count,
                                                   const std::byte* activations, std::size_t token_bytes,
                                                   int row, int rows, const Finish& finish, Ahead& ahead) {
  typename Lanes::Sum sums[Rows * Tokens];
  for (auto& sum : sums) sum = Lanes::none();
  const auto* const tables = reinterpret_cast<const std::byte*>(code_tables());
  for (std::size_t block = 0; block < count; ++block) {
    const std::byte* const codes_of =
        blocks + block * kCodeBlockBytes + static_cast<std::size_t>(row) * kRowBytes;
    const std::byte* const places_at = blocks + block * kCodeBlockBytes + kBlockBytes +
                                       static_cast<std::size_t>(row) * 2 * sizeof(std::uint16_t);
    const auto* const places = reinterpret_cast<const std::uint16_t*>(places_at);
    const std::byte* const inputs = activations + block * kCodeDepth;
#pragma GCC unroll 17
    for (int line = 0; line < Rows; ++line)
      __builtin_prefetch(codes_of + Lanes::kPrefetch + static_cast<std::size_t>(line) * 64);
    if (row == 0) __builtin_prefetch(places_at + Lanes::kPrefetch);
    ahead.fetch();
#pragma GCC unroll 2
    for (std::size_t at = 0; at < kRowBytes / Lanes::kBytes; ++at) {
      typename Lanes::Input first[Tokens];
      typename Lanes::Input second[Tokens];
#pragma GCC unroll 8
      for (int token = 0; token < Tokens; ++token) {
        first[token] = Lanes::input(inputs + static_cast<std::size_t>(token) * token_bytes, at);
        second[token] = Lanes::input(inputs + static_cast<std::size_t>(token) * token_bytes + kRowBytes, at);
      }
#pragma GCC unroll 16
      for (std::size_t i = 0; i < Rows; ++i) {
        const auto codes = Lanes::load(codes_of + i * kRowBytes + at * Lanes::kBytes);
        const auto low =
            Lanes::look_up(Lanes::load(tables + places[2 * i] + at * Lanes::kBytes), Lanes::low(codes));
        const auto high =
            Lanes::look_up(Lanes::load(tables + places[2 * i + 1] + at * Lanes::kBytes), Lanes::high(codes));
#pragma GCC unroll 8
        for (int token = 0; token < Tokens; ++token) {
          auto& sum = sums[static_cast<std::size_t>(token) * Rows + i];
          sum = Lanes::dot(sum, low, first[token]);
          sum = Lanes::dot(sum, high, second[token]);
        }
      }
    }
  }
  typename Lanes::Element totals[Rows * Tokens];
#pragma GCC unroll 32
  for (int i = 0; i < Rows * Tokens; i += kQuad) Lanes::total4(sums + i, totals + i);
  for (int token = 0; token < Tokens; ++token)
    finish_rows(finish, totals + token * Rows, rows < Rows ? rows : Rows, token);
}

template <class Lanes, int Rows, int Tokens>
K3_TARGET inline void run_coded_tile(const std::byte* blocks, std::size_t count, const std::byte* activations,
                                     std::size_t token_bytes, int rows, const Finish& finish, Ahead ahead) {
  for (int row = 0; row < rows; row += Rows) {
    Finish part = finish;
    part.output += row;
    part.row_scales += row;
    part.sums += row;
    run_codes<Lanes, Rows, Tokens>(blocks, count, activations, token_bytes, row, rows - row, part, ahead);
  }
}

// Blocks of codes to blocks of bytes, twice as many.
template <class Lanes>
K3_TARGET inline void decode_codes(const std::byte* blocks, std::size_t count, std::byte* to,
                                   std::size_t stride = kBlockBytes) {
  const auto* const tables = reinterpret_cast<const std::byte*>(code_tables());
  for (std::size_t block = 0; block < count; ++block, blocks += kCodeBlockBytes, to += 2 * stride) {
    const auto* const places = reinterpret_cast<const std::uint16_t*>(blocks + kBlockBytes);
#pragma GCC unroll 4
    for (std::size_t row = 0; row < kTileRows; ++row) {
#pragma GCC unroll 2
      for (std::size_t at = 0; at < kRowBytes; at += Lanes::kBytes) {
        const auto codes = Lanes::load(blocks + row * kRowBytes + at);
        Lanes::store(to + row * kRowBytes + at,
                     Lanes::look_up(Lanes::load(tables + places[2 * row] + at), Lanes::low(codes)));
        Lanes::store(to + stride + row * kRowBytes + at,
                     Lanes::look_up(Lanes::load(tables + places[2 * row + 1] + at), Lanes::high(codes)));
      }
    }
  }
}

template <class Lanes>
K3_TARGET void run_mxfp4(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t columns = (weights.depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  std::byte* const inputs = call.workspace->activations();
  round_activations(call.activations, call.tokens, weights.depth, columns, Lanes::kOffset,
                    reinterpret_cast<std::uint8_t*>(inputs), call.workspace->scales());
  for (std::size_t tile = 0; tile < weights.tile_count(); ++tile) {
    const int rows = rows_of_tile(weights, tile);
    const std::byte* at = weights.tile(tile);
    for (bool last = false, first = true; !last; first = false) {
      const auto& head = *reinterpret_cast<const SegmentHead*>(at);
      const std::byte* const blocks = at + sizeof(SegmentHead);
      const std::byte* const inputs_at = inputs + head.first_block * kCodeDepth;
      const Finish finish{call.output + tile * kTileRows, weights.rows, head.scale, head.sum, Lanes::kOffset,
                          call.workspace->scales(),       !first};
      switch (call.tokens <= Lanes::kMostDirect ? call.tokens : 0) {
        case 1:
          run_coded_tile<Lanes, Lanes::kRowsOfOne, 1>(blocks, head.blocks, inputs_at, columns, rows, finish,
                                                      {});
          break;
        case 2:
          run_coded_tile<Lanes, Lanes::kRowsOfOne / 2, 2>(blocks, head.blocks, inputs_at, columns, rows,
                                                          finish, {});
          break;
        case 3:
          run_coded_tile<Lanes, kQuad, 3>(blocks, head.blocks, inputs_at, columns, rows, finish, {});
          break;
        case 4:
          run_coded_tile<Lanes, kQuad, 4>(blocks, head.blocks, inputs_at, columns, rows, finish, {});
          break;
        default:
          decode_codes<Lanes>(blocks, head.blocks, call.workspace->decoded(), kDecodedStride);
          run_tile<Lanes>({call.workspace->decoded(), 2 * head.blocks, kDecodedStride}, inputs_at, columns,
                          call.tokens, rows, finish, next_tile(weights, tile));
      }
      last = head.last != 0;
      at = blocks + head.blocks * kCodeBlockBytes;
    }
  }
}

template <class Lanes>
K3_TARGET void run_int8(const Call& call) {
  const Packed& weights = *call.weights;
  const std::size_t columns = (weights.depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  std::byte* const inputs = call.workspace->activations();
  round_activations(call.activations, call.tokens, weights.depth, columns, Lanes::kOffset,
                    reinterpret_cast<std::uint8_t*>(inputs), call.workspace->scales());
  const std::size_t blocks = (weights.depth + kRowBytes - 1) / kRowBytes;
  for (std::size_t tile = 0; tile < weights.tile_count(); ++tile) {
    const auto& head = *reinterpret_cast<const RowsHead*>(weights.tile(tile));
    const Finish finish{call.output + tile * kTileRows, weights.rows, head.scale, head.sum, Lanes::kOffset,
                        call.workspace->scales(),       false};
    run_tile<Lanes>({weights.tile(tile) + sizeof head, blocks}, inputs, columns, call.tokens,
                    rows_of_tile(weights, tile), finish, next_tile(weights, tile));
  }
}
