#include "isa.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace k3gate {

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
    case Isa::kGeneric:
      break;
  }
  return "generic";
}

#if defined(__x86_64__)
namespace {

// The register state that the operating system saves: bit 1 SSE, 2 AVX, 5-7 AVX-512.
std::uint64_t saved_register_state() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kOsxsave = 1U << 27;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kOsxsave) != 0) {
    const std::uint64_t state = saved_register_state();
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
      constexpr unsigned kAvx2 = 1U << 5;
      constexpr unsigned kAvx512 = (1U << 16) | (1U << 30) | (1U << 31);  // F, BW, VL
      if ((state & 0xe6) == 0xe6 && (ebx & kAvx512) == kAvx512) found.push_back(Isa::kAvx512);
      if ((state & 0x06) == 0x06 && (ebx & kAvx2) != 0) found.push_back(Isa::kAvx2);
    }
  }
  found.push_back(Isa::kGeneric);
  return found;
}
#elif defined(__aarch64__)
std::vector<Isa> supported_isas() { return {Isa::kNeon, Isa::kGeneric}; }  // Advanced SIMD is the baseline.
#else
std::vector<Isa> supported_isas() { return {Isa::kGeneric}; }
#endif

}  // namespace k3gate
