// The vector instructions of x86-64.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands within its own intrinsics for a mistake of ours (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>
