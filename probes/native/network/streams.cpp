#include "streams.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

namespace k3gate::network {
namespace {

constexpr std::size_t kBlock = 1U << 18U;  // handed to the kernel at once; stays in a level-2 cache

double cpu_now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Sends or receives once; what a signal interrupted is tried again. Negative: errno says why.
ssize_t send_some(int socket, const unsigned char* data, std::size_t size) {
  ssize_t done = 0;
  do {
    done = ::send(socket, data, size, MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
  return done;
}

ssize_t receive_some(int socket, unsigned char* data, std::size_t size) {
  ssize_t done = 0;
  do {
    done = ::recv(socket, data, size, 0);
  } while (done < 0 && errno == EINTR);
  return done;
}

bool send_whole(int socket, const unsigned char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t done = send_some(socket, data, size);
    if (done < 0) return false;
    data += done;
    size -= static_cast<std::size_t>(done);
  }
  return true;
}

// The bytes received: fewer than `size` where the other end said that no more comes, negative on an error.
ssize_t receive_whole(int socket, unsigned char* data, std::size_t size) {
  std::size_t got = 0;
  while (got < size) {
    const ssize_t done = receive_some(socket, data + got, size - got);
    if (done < 0) return done;
    if (done == 0) break;
    got += static_cast<std::size_t>(done);
  }
  return static_cast<ssize_t>(got);
}

std::uint64_t mixed(std::uint64_t value) {  // splitmix64 (Steele, Lea, Flood 2014)
  value += 0x9E3779B97F4A7C15U;
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Pattern::Pattern(std::uint64_t seed) : bytes_(kPeriod + kProbe) {
  for (std::size_t place = 0; place < kPeriod; ++place) {
    const std::uint64_t word = mixed(seed ^ mixed(place / 8));
    bytes_[place] = static_cast<unsigned char>(word >> (place % 8 * 8));
  }
  // What is compared may reach over the end of a period.
  std::copy_n(bytes_.begin(), kProbe, bytes_.begin() + kPeriod);
}

Sent send_until(int socket, const Pattern& pattern, double until) {
  Sent sent;
  const double cpu = cpu_now();
  sent.first = now();
  while (now() < until) {
    const std::size_t size = std::min(kBlock, Pattern::left(sent.bytes));
    const ssize_t done = send_some(socket, pattern.at(sent.bytes), size);
    if (done < 0) {
      sent.error = errno;
      break;
    }
    sent.bytes += static_cast<std::uint64_t>(done);
  }
  sent.last = now();
  ::shutdown(socket, SHUT_WR);
  sent.cpu_seconds = cpu_now() - cpu;
  return sent;
}

Received receive_all(int socket, const Pattern& pattern, double from, double to, double give_up) {
  std::vector<unsigned char> buffer(kBlock);
  Received got;
  const double cpu = cpu_now();
  while (true) {
    const ssize_t done = receive_some(socket, buffer.data(), buffer.size());
    const double time = now();
    if (done < 0) {
      got.error = errno;
      break;
    }
    if (done == 0) break;
    if (got.bytes == 0) got.first = time;
    got.last = time;
    const auto size = static_cast<std::size_t>(done);
    if (time > from && time <= to) got.window_bytes += size;
    // Head and tail of what came: a byte that is lost, doubled or put elsewhere moves all that follow it.
    const std::size_t probe = std::min(size, Pattern::kProbe);
    const std::uint64_t tail = got.bytes + size - probe;
    got.wrong += std::memcmp(buffer.data(), pattern.at(got.bytes), probe) != 0 ? 1 : 0;
    got.wrong += std::memcmp(buffer.data() + size - probe, pattern.at(tail), probe) != 0 ? 1 : 0;
    got.probes += 2;
    got.bytes += size;
    if (time > give_up) {
      got.error = ETIMEDOUT;
      break;
    }
  }
  got.cpu_seconds = cpu_now() - cpu;
  return got;
}

Trips ping(int socket, std::size_t bytes, double until, std::size_t most, const Pattern& pattern) {
  Trips trips;
  trips.seconds.reserve(most);
  std::vector<unsigned char> message(bytes);
  std::vector<unsigned char> back(bytes);
  for (std::size_t place = 0; place < bytes; ++place) message[place] = *pattern.at(place);
  const double cpu = cpu_now();
  for (std::uint64_t number = 0; number < most; ++number) {
    std::memcpy(message.data(), &number, std::min(sizeof number, bytes));
    const double begun = now();
    if (begun >= until) break;
    errno = 0;
    const bool gone = send_whole(socket, message.data(), bytes);
    const ssize_t got = gone ? receive_whole(socket, back.data(), bytes) : -1;
    const double ended = now();
    if (got != static_cast<ssize_t>(bytes)) {
      trips.error = got >= 0 ? ECONNRESET : errno;
      break;
    }
    trips.seconds.push_back(ended - begun);
    trips.wrong += std::memcmp(message.data(), back.data(), bytes) != 0 ? 1 : 0;
  }
  ::shutdown(socket, SHUT_WR);
  trips.cpu_seconds = cpu_now() - cpu;
  return trips;
}

Echoed echo(int socket, std::size_t bytes) {
  Echoed echoed;
  std::vector<unsigned char> message(bytes);
  const double cpu = cpu_now();
  while (true) {
    const ssize_t got = receive_whole(socket, message.data(), bytes);
    if (got == 0) break;
    if (got != static_cast<ssize_t>(bytes)) {
      echoed.error = got >= 0 ? ECONNRESET : errno;
      break;
    }
    if (!send_whole(socket, message.data(), bytes)) {
      echoed.error = errno;
      break;
    }
    ++echoed.messages;
  }
  ::shutdown(socket, SHUT_WR);
  echoed.cpu_seconds = cpu_now() - cpu;
  return echoed;
}

}  // namespace k3gate::network
