#include "bindings.hpp"

#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "streams.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace k3gate::network {
namespace {

constexpr std::size_t kMostBytes = 1U << 24U;
constexpr std::size_t kMostTrips = 1U << 22U;

void require_size(std::size_t bytes) {
  if (bytes < 8 || bytes > kMostBytes) throw std::invalid_argument("a message has 8 bytes to 16 MiB");
}

Sent send_stream(int socket, std::uint64_t seed, double seconds) {
  const Pattern pattern(seed);
  return send_until(socket, pattern, now() + seconds);
}

// The window begins `warm_up` seconds after the call and lasts `seconds`; after twice as long and 10 s it
// gives up.
Received receive_stream(int socket, std::uint64_t seed, double begun, double warm_up, double seconds) {
  const Pattern pattern(seed);
  const double from = begun + warm_up;
  return receive_all(socket, pattern, from, from + seconds, from + 2 * seconds + 10);
}

Trips ping_for(int socket, std::size_t bytes, double seconds, std::size_t most, std::uint64_t seed) {
  require_size(bytes);
  if (most > kMostTrips) throw std::invalid_argument("at most 4 Mi messages at a time");
  const Pattern pattern(seed);
  return ping(socket, bytes, now() + seconds, most, pattern);
}

Echoed echo_of(int socket, std::size_t bytes) {
  require_size(bytes);
  return echo(socket, bytes);
}

}  // namespace

void bind(nb::module_& module) {
  nb::class_<Sent>(module, "NetworkSent")
      .def_ro("bytes", &Sent::bytes)
      .def_ro("first", &Sent::first)
      .def_ro("last", &Sent::last)
      .def_ro("cpu_seconds", &Sent::cpu_seconds)
      .def_ro("error", &Sent::error);
  nb::class_<Received>(module, "NetworkReceived")
      .def_ro("bytes", &Received::bytes)
      .def_ro("window_bytes", &Received::window_bytes)
      .def_ro("probes", &Received::probes)
      .def_ro("wrong", &Received::wrong)
      .def_ro("first", &Received::first)
      .def_ro("last", &Received::last)
      .def_ro("cpu_seconds", &Received::cpu_seconds)
      .def_ro("error", &Received::error);
  nb::class_<Trips>(module, "NetworkTrips")
      .def_ro("seconds", &Trips::seconds)
      .def_ro("wrong", &Trips::wrong)
      .def_ro("cpu_seconds", &Trips::cpu_seconds)
      .def_ro("error", &Trips::error);
  nb::class_<Echoed>(module, "NetworkEchoed")
      .def_ro("messages", &Echoed::messages)
      .def_ro("cpu_seconds", &Echoed::cpu_seconds)
      .def_ro("error", &Echoed::error);
  const nb::call_guard<nb::gil_scoped_release> others_run;
  module.def("network_now", &now);
  module.def("network_send", &send_stream, "socket"_a, "seed"_a, "seconds"_a, others_run);
  module.def("network_receive", &receive_stream, "socket"_a, "seed"_a, "begun"_a, "warm_up"_a, "seconds"_a,
             others_run);
  module.def("network_ping", &ping_for, "socket"_a, "bytes"_a, "seconds"_a, "most"_a, "seed"_a, others_run);
  module.def("network_echo", &echo_of, "socket"_a, "bytes"_a, others_run);
}

}  // namespace k3gate::network
