#include "code_words.hpp"

#include <cstddef>

#include "rounding.hpp"
#include "weights.hpp"

namespace k3gate::gemm {

const std::uint16_t* code_words() {
  struct alignas(64) Words {
    std::uint16_t values[4][32];
  };
  static const Words words = [] {
    Words made{};
    for (std::size_t shift = 0; shift < 4; ++shift) {
      for (std::size_t i = 0; i < 32; ++i)
        made.values[shift][i] = to_bf16(static_cast<float>(kDoubledCodes[i % 16] * (1 << shift)));
    }
    return made;
  }();
  return &words.values[0][0];
}

}  // namespace k3gate::gemm
