#include "situ.hpp"

#include <bit>
#include <cmath>

#include "paths.hpp"

namespace k3gate::gemm {
namespace {

namespace generic {
#define K3_TARGET
#include "situ.inl"
#undef K3_TARGET
}  // namespace generic

#if defined(__x86_64__)
namespace avx2 {
#define K3_TARGET __attribute__((target("avx2,fma")))
#include "situ.inl"
#undef K3_TARGET
}  // namespace avx2

namespace avx512 {
#define K3_TARGET \
  __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#include "situ.inl"
#undef K3_TARGET
}  // namespace avx512
#endif

using Loop = void (*)(const float*, const float*, std::size_t, std::uint16_t*);

Loop chosen_loop() {
#if defined(__x86_64__)
  if (availability(Path::kAvx512).presence == Presence::kOk) return avx512::situ_loop;
  if (availability(Path::kAvx2).presence == Presence::kOk) return avx2::situ_loop;
#endif
  return generic::situ_loop;
}

}  // namespace

void situ(const float* gate_up, std::size_t tokens, std::size_t width, std::uint16_t* to) {
  static const Loop loop = chosen_loop();
  for (std::size_t token = 0; token < tokens; ++token, gate_up += 2 * width, to += width)
    loop(gate_up, gate_up + width, width, to);
}

double situ_exact(double gate, double up) {
  return 4 * std::tanh(gate / 4) / (1 + std::exp(-gate)) * 25 * std::tanh(up / 25);
}

double situ_bound(double gate, double up) {
  const double value = std::fabs(situ_exact(gate, up));
  return value * (0x1p-8 + 0x1p-19) + 0x1p-118;  // the last: gates below -87 count as -87
}

}  // namespace k3gate::gemm
