#include "workspace.hpp"

#include <algorithm>

#include "weights.hpp"

namespace k3gate::gemm {

void Workspace::reserve(std::size_t tokens, std::size_t depth) {
  const auto grow = [](Buffer& buffer, std::size_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  };
  const std::size_t columns = (depth + kCodeDepth - 1) / kCodeDepth * kCodeDepth;
  const std::size_t padded = (tokens + kTileRows - 1) / kTileRows * kTileRows;
  grow(activations_, padded * padded_row(columns * sizeof(float)));  // float32 is the widest
  grow(scales_, padded * sizeof(float));
  // Chunks of four tiles, or of two twice; of the generic path a row.
  grow(decoded_, std::max(256 * kBlockBytes, columns * sizeof(std::uint16_t)));
  grow(sums_, padded * 4 * kLineBytes);
}

}  // namespace k3gate::gemm
