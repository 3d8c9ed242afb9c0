// Rounds activations for a family of paths; included with K3_TARGET set, within an anonymous namespace, so
// that each family has its own code. Plain loops, which compilers turn into vectors of the target.
#pragma once

// [tokens, depth] BF16 to bytes [tokens, columns], columns = depth rounded up to 128; `offset` is added to
// each (as instructions that multiply unsigned by signed bytes want the activations unsigned). Scales get
// max|x| / 127.
K3_TARGET inline void round_activations(const std::uint16_t* __restrict from, std::size_t tokens,
                                        std::size_t depth, std::size_t columns, int offset,
                                        std::uint8_t* __restrict to, float* __restrict scales) {
  for (std::size_t token = 0; token < tokens; ++token, from += depth, to += columns) {
    std::uint16_t most = 0;
    for (std::size_t k = 0; k < depth; ++k) {
      const auto magnitude = static_cast<std::uint16_t>(from[k] & 0x7fffU);
      most = magnitude > most ? magnitude : most;
    }
    const float largest = from_bf16(most);
    const bool zero = largest < kLeastActivation;
    const float factor = zero ? 0.0F : 127.0F / largest;
    scales[token] = zero ? 0.0F : largest / 127.0F;
    for (std::size_t k = 0; k < depth; ++k) {
      // Not by adding 1.5 x 2^23: a compiler may fuse that with the multiplication, and so round once only.
      const float scaled = std::bit_cast<float>(static_cast<std::uint32_t>(from[k]) << 16) * factor;
      to[k] = static_cast<std::uint8_t>(static_cast<std::int32_t>(__builtin_nearbyintf(scaled)) + offset);
    }
    for (std::size_t k = depth; k < columns; ++k) to[k] = 0;
  }
}

// The same by groups of 32 columns, [tokens, depth] BF16 to blocks of kScaledInputs, `token_bytes` from token
// to token. A sum of products begins with `start` times the sum of a group's bytes.
K3_TARGET inline void round_groups(const std::uint16_t* __restrict from, std::size_t tokens,
                                   std::size_t depth, int start, std::byte* __restrict to,
                                   std::size_t token_bytes) {
  constexpr std::size_t kHalves = kScaledDepth / kGroup;
  for (std::size_t token = 0; token < tokens; ++token, to += token_bytes) {
    for (std::size_t group = 0; group < (depth + kScaledDepth - 1) / kScaledDepth * kHalves; ++group) {
      std::byte* const block = to + group / kHalves * kScaledInputs;
      auto* const bytes = reinterpret_cast<std::int8_t*>(block) + group % kHalves * kGroup;
      ActivationGroup found{};
      if (group * kGroup < depth) {
        std::uint16_t most = 0;
        for (std::size_t k = 0; k < kGroup; ++k) {
          const auto magnitude = static_cast<std::uint16_t>(from[k] & 0x7fffU);
          most = magnitude > most ? magnitude : most;
        }
        const float largest = from_bf16(most);
        const bool zero = largest < kLeastActivation;
        const float factor = zero ? 0.0F : 127.0F / largest;
        found.scale = zero ? 0.0F : largest / 127.0F;
        std::int32_t sum = 0;
        for (std::size_t k = 0; k < kGroup; ++k) {
          const float scaled = std::bit_cast<float>(static_cast<std::uint32_t>(from[k]) << 16) * factor;
          const auto whole = static_cast<std::int32_t>(__builtin_nearbyintf(scaled));
          bytes[k] = static_cast<std::int8_t>(whole);
          sum += whole;
        }
        found.start = start * sum;
        from += kGroup;
      } else {
        for (std::size_t k = 0; k < kGroup; ++k) bytes[k] = 0;
      }
      std::memcpy(block + kScaledDepth + group % kHalves * sizeof found, &found, sizeof found);
    }
  }
}
