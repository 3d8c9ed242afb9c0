#include "workspace.hpp"

#include "weights.hpp"

namespace k3gate::gemm {

void Workspace::reserve(std::size_t tokens, std::size_t depth) {
  const auto grow = [](Buffer& buffer, std::size_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  };
  const std::size_t columns = (depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  const std::size_t padded = (tokens + kTileRows - 1) / kTileRows * kTileRows;
  // Twice: rounded, then rearranged for tiles. The widest is float32.
  grow(activations_, 2 * padded * columns * sizeof(float));
  grow(scales_, padded * sizeof(float));
  // A tile of rows in BF16, or chunks of two; and the sums of two tiles of rows for all tokens.
  constexpr std::size_t kChunks = 64 * kBlockBytes;
  grow(decoded_,
       kTileRows * columns * sizeof(std::uint16_t) + kChunks + (padded / kTileRows + 1) * 2 * kBlockBytes);
}

}  // namespace k3gate::gemm
