#include "team.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace k3gate {
namespace {

constexpr std::size_t kBits = 8 * sizeof(unsigned long);

// Raw system calls on masks of any width: cpu_set_t ends at CPU 1023.
int pin_to(int cpu) {
  if (cpu < 0 || cpu >= 1 << 20) return EINVAL;
  std::vector<unsigned long> mask(static_cast<std::size_t>(cpu) / kBits + 1, 0);
  mask[static_cast<std::size_t>(cpu) / kBits] |= 1UL << (static_cast<std::size_t>(cpu) % kBits);
  const long result = syscall(SYS_sched_setaffinity, 0, mask.size() * sizeof(unsigned long), mask.data());
  return result == 0 ? 0 : errno;
}

int current_cpu() {
  unsigned cpu = 0;
  return syscall(SYS_getcpu, &cpu, nullptr, nullptr) == 0 ? static_cast<int>(cpu) : -1;
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

std::vector<int> allowed_cpus() {
  for (std::size_t words = 16; words <= (1U << 20) / kBits; words *= 2) {
    std::vector<unsigned long> mask(words, 0);
    const long got = syscall(SYS_sched_getaffinity, 0, words * sizeof(unsigned long), mask.data());
    if (got < 0) {
      if (errno == EINVAL) continue;
      throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
    }
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < words * kBits; ++cpu) {
      if ((mask[cpu / kBits] >> (cpu % kBits) & 1) != 0) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  throw std::system_error(EINVAL, std::generic_category(), "sched_getaffinity");
}

Team::Team(std::vector<int> cpus)
    : cpus_(std::move(cpus)),
      pin_errors_(cpus_.size()),
      load_positions_(cpus_.size()),
      reports_(cpus_.size()) {
  if (cpus_.empty()) throw std::invalid_argument("a team needs at least one CPU");
  try {
    for (std::size_t i = 0; i < cpus_.size(); ++i) threads_.emplace_back([this, i] { loop(i); });
    execute([this](std::size_t i, ThreadReport&) { pin_errors_[i] = pin_to(cpus_[i]); });
  } catch (...) {
    stop();
    throw;
  }
  for (std::size_t i = 0; i < cpus_.size(); ++i) {
    if (pin_errors_[i] != 0) {
      stop();
      throw std::system_error(pin_errors_[i], std::generic_category(),
                              "pinning to CPU " + std::to_string(cpus_[i]));
    }
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  threads_.clear();  // joins
}

void Team::loop(std::size_t index) {
  for (std::uint64_t seen = 0;;) {
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_) return;
    (*work_)(index, reports_[index]);
    finished_.fetch_add(1, std::memory_order_release);
    finished_.notify_one();
  }
}

// A spin barrier, since a sleeping one would let the threads start tens of microseconds apart. It yields
// after a while: with fewer CPUs than threads the one that is waited for must get to run.
void Team::arrive_and_spin() {
  const std::uint64_t round = released_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == cpus_.size()) {
    arrived_.store(0, std::memory_order_relaxed);
    released_.fetch_add(1, std::memory_order_release);
    return;
  }
  for (unsigned spins = 0; released_.load(std::memory_order_acquire) == round; ++spins) {
    if (spins < 100'000) {
      relax();
    } else {
      sched_yield();
    }
  }
}

Region Team::execute(const Work& work) {
  const Work timed = [this, &work](std::size_t index, ThreadReport& report) {
    report = ThreadReport{};
    report.cpu_before = current_cpu();
    arrive_and_spin();
    report.start = now();
    work(index, report);
    report.end = now();
    report.cpu_after = current_cpu();
  };
  work_ = &timed;
  finished_.store(0, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::uint64_t done = finished_.load(std::memory_order_acquire); done < cpus_.size();) {
    finished_.wait(done, std::memory_order_acquire);
    done = finished_.load(std::memory_order_acquire);
  }
  work_ = nullptr;
  Region region{.threads = reports_};
  double first = reports_[0].start;
  double last = reports_[0].end;
  for (const ThreadReport& report : reports_) {
    first = std::min(first, report.start);
    last = std::max(last, report.end);
  }
  region.seconds = last - first;
  return region;
}

std::vector<std::vector<int>> Team::affinities() {
  std::vector<std::vector<int>> masks(cpus_.size());
  execute([&masks](std::size_t index, ThreadReport& report) {
    try {
      masks[index] = allowed_cpus();
    } catch (const std::system_error& error) {
      report.error = error.code().value();  // an empty list says that it could not be read
    }
  });
  return masks;
}

}  // namespace k3gate
