// What Python sees of the products: functions `gemm_*` and classes `Gemm*` of k3gate.probes._native.
#pragma once

#include <nanobind/nanobind.h>

namespace k3gate::gemm {

void bind(nanobind::module_& module);

}  // namespace k3gate::gemm
