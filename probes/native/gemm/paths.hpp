// The instruction sets that products are written for, and whether this CPU and its kernel give them.
#pragma once

#include <span>
#include <string_view>

#include "../isa.hpp"

namespace k3gate::gemm {

enum class Path { kAmxInt8, kAmxBf16, kAvx512Vnni, kAvx512Bf16, kAvx512, kAvxVnni, kAvx2, kGeneric };

// "amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16", "avx512", "avx_vnni", "avx2", "generic".
std::string_view name_of(Path path);

// The instruction set of the kernels that only read and write which goes with a path.
Isa base_of(Path path);

// Best first.
std::span<const Path> paths();

enum class Presence { kOk, kNotPresent, kNotPermitted };

std::string_view name_of(Presence presence);  // "ok", "not_present", "not_permitted"

struct Availability {
  Presence presence;
  int error;  // errno of the request for the tile registers where it was refused, else 0
};

// What CPUID says of a CPU, for the choice of paths: apart, so that others than this one can be tried.
struct CpuFlags {
  bool avx2 = false;  // with FMA and F16C
  bool avx_vnni = false;
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx512_vbmi = false;  // no path of its own: codes are looked up faster
  bool amx_tile = false;
  bool amx_int8 = false;
  bool amx_bf16 = false;
};

CpuFlags cpu_flags();

// Asks the kernel for the tile registers (arch_prctl, ARCH_REQ_XCOMP_PERM): returns 0 or errno. Linux gives
// them from 5.16 on, once asked, to all threads of the process.
int request_tiles();

// `request` is called only where the CPU has the tiles.
Availability availability(Path path, const CpuFlags& flags, int (*request)());

// Of this CPU; asked once per process.
Availability availability(Path path);

}  // namespace k3gate::gemm
