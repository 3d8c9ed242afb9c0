// What is timed on connected sockets: streams of a known pattern, and messages that travel forth and back.
// Sockets are blocking ones, whose SO_RCVTIMEO and SO_SNDTIMEO bound how long nothing may move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace k3gate::network {

// Both ends make the same bytes from the same seed, so that a receiver knows every byte of a stream by its
// place.
class Pattern {
 public:
  explicit Pattern(std::uint64_t seed);

  // The stream's bytes from this place on, at least `kProbe` and up to the end of a period of them.
  [[nodiscard]] const unsigned char* at(std::uint64_t place) const { return bytes_.data() + place % kPeriod; }
  [[nodiscard]] static std::size_t left(std::uint64_t place) {
    return kPeriod - static_cast<std::size_t>(place % kPeriod);
  }

  static constexpr std::size_t kPeriod = (1U << 18U) + 4099;  // no multiple of a packet or a page
  static constexpr std::size_t kProbe = 64;                   // bytes that are compared at a time

 private:
  std::vector<unsigned char> bytes_;
};

// `error`: an errno that ended it early, 0 for none; EAGAIN: nothing moved within the socket's time limit.
// Times are of the steady clock in seconds; `cpu_seconds` those of the calling thread.
struct Sent {
  std::uint64_t bytes = 0;
  double first = 0;
  double last = 0;
  double cpu_seconds = 0;
  int error = 0;
};

struct Received {
  std::uint64_t bytes = 0;
  std::uint64_t window_bytes = 0;  // of them, what arrived in the window
  std::uint64_t probes = 0;        // how often `kProbe` bytes were compared with the pattern
  std::uint64_t wrong = 0;         // and how often they differed
  double first = 0;
  double last = 0;
  double cpu_seconds = 0;
  int error = 0;
};

struct Trips {
  std::vector<double> seconds;
  std::uint64_t wrong = 0;
  double cpu_seconds = 0;
  int error = 0;
};

struct Echoed {
  std::uint64_t messages = 0;
  double cpu_seconds = 0;
  int error = 0;
};

double now();

// Sends until the time `until`, then tells the other end that no more comes (shutdown).
Sent send_until(int socket, const Pattern& pattern, double until);

// Receives until the other end says that no more comes, or until the time `give_up` (error ETIMEDOUT).
Received receive_all(int socket, const Pattern& pattern, double from, double to, double give_up);

// Messages of so many bytes (8 at least), each sent when the one before has come back; at most `most` of
// them. Every message carries its number, and what comes back is compared with it outside of what is timed.
Trips ping(int socket, std::size_t bytes, double until, std::size_t most, const Pattern& pattern);

// Sends each message back, until the other end says that no more comes.
Echoed echo(int socket, std::size_t bytes);

}  // namespace k3gate::network
