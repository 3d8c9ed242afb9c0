// Reading a mapped file outlives what a mapping cannot report: k3gate.model.checkpoint._mapped.
//
// Where a file was cut, a disk failed or memory is poisoned, touching a mapped page raises SIGBUS, which
// would end the process. While a range is watched, its pages then become zeros, and the watch says that it
// broke.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;

namespace k3gate {
namespace {

// What a signal handler may read: no locks, nothing allocated. `end` is written last and cleared first, so
// that a slot that is half written holds no address.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<bool> broken{false};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::array<Slot, 4096> slots;
struct sigaction earlier;

// Replaces the whole watched range: the thread that reads it finds zeros from here on and looks at `broken`.
bool replaced(std::uintptr_t address) {
  for (Slot& slot : slots) {
    const std::uintptr_t begin = slot.begin.load();
    const std::uintptr_t end = slot.end.load();
    if (address < begin || address >= end) continue;
    void* zeros = mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) return false;
    slot.broken.store(true);
    return true;
  }
  return false;
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const int saved = errno;
  const bool sent = info->si_code <= 0;  // by a process: no address belongs to it
  if (sent || !replaced(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    // Not ours: whoever was there before gets it, as the instruction runs again.
    sigaction(SIGBUS, &earlier, nullptr);
    if (sent) raise(number);
  }
  errno = saved;
}

void install() {
  struct sigaction ours {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, &earlier);
}

std::size_t watch(const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::device::cpu>& mapped) {
  static const bool installed = (install(), true);
  static_cast<void>(installed);
  for (std::size_t number = 0; number < slots.size(); ++number) {
    Slot& slot = slots[number];
    if (slot.taken.exchange(true)) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
    slot.broken.store(false);
    slot.begin.store(begin);
    slot.end.store(begin + mapped.nbytes());
    return number;
  }
  throw std::runtime_error("too many mapped ranges are watched");
}

bool unwatch(std::size_t number) {
  Slot& slot = slots.at(number);
  slot.end.store(0);
  slot.begin.store(0);
  const bool whole = !slot.broken.load();
  slot.taken.store(false);
  return whole;
}

}  // namespace
}  // namespace k3gate

NB_MODULE(_mapped, module) {
  module.def("watch", &k3gate::watch, "mapped"_a);
  module.def("unwatch", &k3gate::unwatch, "number"_a);
}
