// What Python sees of the network: functions and classes `Network*`, `network_*` of k3gate.probes._native.
#pragma once

#include <nanobind/nanobind.h>

namespace k3gate::network {

void bind(nanobind::module_& module);

}  // namespace k3gate::network
