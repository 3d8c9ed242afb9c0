// Which instruction sets this CPU and its kernel offer, for the choice of a kernel at run time.
#pragma once

#include <string_view>
#include <vector>

namespace k3gate {

enum class Isa { kGeneric, kAvx2, kAvx512, kNeon };

// "generic", "avx2", "avx512", "neon".
std::string_view name_of(Isa isa);

// What can run here, best first; the last one is always kGeneric. On x86-64 by CPUID and XGETBV, since
// a flag without the operating system's register state would still end in SIGILL.
std::vector<Isa> supported_isas();

}  // namespace k3gate
