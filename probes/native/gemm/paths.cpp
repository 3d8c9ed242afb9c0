#include "paths.hpp"

#include <array>
#include <cerrno>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace k3gate::gemm {

std::string_view name_of(Path path) {
  switch (path) {
    case Path::kAmxInt8:
      return "amx_int8";
    case Path::kAmxBf16:
      return "amx_bf16";
    case Path::kAvx512Vnni:
      return "avx512_vnni";
    case Path::kAvx512Bf16:
      return "avx512_bf16";
    case Path::kAvx512:
      return "avx512";
    case Path::kAvxVnni:
      return "avx_vnni";
    case Path::kAvx2:
      return "avx2";
    case Path::kGeneric:
      break;
  }
  return "generic";
}

std::string_view name_of(Presence presence) {
  switch (presence) {
    case Presence::kOk:
      return "ok";
    case Presence::kNotPermitted:
      return "not_permitted";
    case Presence::kNotPresent:
      break;
  }
  return "not_present";
}

Isa base_of(Path path) {
  switch (path) {
    case Path::kAmxInt8:
    case Path::kAmxBf16:
    case Path::kAvx512Vnni:
    case Path::kAvx512Bf16:
    case Path::kAvx512:
      return Isa::kAvx512;
    case Path::kAvxVnni:
    case Path::kAvx2:
      return Isa::kAvx2;
    case Path::kGeneric:
      break;
  }
  return Isa::kGeneric;
}

std::span<const Path> paths() {
  static constexpr std::array kPaths = {Path::kAmxInt8, Path::kAmxBf16, Path::kAvx512Vnni, Path::kAvx512Bf16,
                                        Path::kAvx512,  Path::kAvxVnni, Path::kAvx2,       Path::kGeneric};
  return kPaths;
}

#if defined(__x86_64__)

CpuFlags cpu_flags() {
  CpuFlags flags;
  bool avx2 = false;
  bool avx512 = false;
  for (const Isa isa : supported_isas()) {  // with the operating system's state
    avx2 = avx2 || isa == Isa::kAvx2;
    avx512 = avx512 || isa == Isa::kAvx512;
  }
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0)
    flags.avx2 = avx2 && (ecx >> 12 & 1) != 0 && (ecx >> 29 & 1) != 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return flags;
  flags.avx512 = avx512 && flags.avx2 && (ebx >> 17 & 1) != 0;
  flags.avx512_vnni = flags.avx512 && (ecx >> 11 & 1) != 0;
  flags.avx512_vbmi = flags.avx512 && (ecx >> 1 & 1) != 0;
  // The tile kernels decode with AVX-512 VBMI, which every CPU with tiles has.
  flags.amx_tile = flags.avx512_vbmi && (edx >> 24 & 1) != 0;
  flags.amx_int8 = flags.amx_tile && (edx >> 25 & 1) != 0;
  flags.amx_bf16 = flags.amx_tile && (edx >> 22 & 1) != 0;
  if (eax < 1 || __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return flags;
  flags.avx_vnni = flags.avx2 && (eax >> 4 & 1) != 0;
  flags.avx512_bf16 = flags.avx512 && (eax >> 5 & 1) != 0;
  return flags;
}

int request_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
}

#else

CpuFlags cpu_flags() { return {}; }

int request_tiles() { return ENOSYS; }

#endif

Availability availability(Path path, const CpuFlags& flags, int (*request)()) {
  const auto present = [](bool has) { return Availability{has ? Presence::kOk : Presence::kNotPresent, 0}; };
  switch (path) {
    case Path::kAmxInt8:
    case Path::kAmxBf16: {
      if (!(path == Path::kAmxInt8 ? flags.amx_int8 : flags.amx_bf16)) return present(false);
      const int error = request();
      return {error == 0 ? Presence::kOk : Presence::kNotPermitted, error};
    }
    case Path::kAvx512Vnni:
      return present(flags.avx512_vnni);
    case Path::kAvx512Bf16:
      return present(flags.avx512_bf16);
    case Path::kAvx512:
      return present(flags.avx512);
    case Path::kAvxVnni:
      return present(flags.avx_vnni);
    case Path::kAvx2:
      return present(flags.avx2);
    case Path::kGeneric:
      break;
  }
  return present(true);
}

Availability availability(Path path) {
  static const std::array<Availability, 8> found = [] {
    std::array<Availability, 8> all{};
    const CpuFlags flags = cpu_flags();
    for (const Path each : paths())
      all[static_cast<std::size_t>(each)] = availability(each, flags, request_tiles);
    return all;
  }();
  return found[static_cast<std::size_t>(path)];
}

}  // namespace k3gate::gemm
