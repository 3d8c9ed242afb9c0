// What Python sees of decoding: `DecodeEngine` and functions `decode_*` of k3gate.probes._native.
#pragma once

#include <nanobind/nanobind.h>

namespace k3gate::decode {

void bind(nanobind::module_& module);

}  // namespace k3gate::decode
