// What a team does with memory: touching, verifying, kernels, chases.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "chase.hpp"
#include "clock.hpp"
#include "scatter.hpp"
#include "team.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace k3gate {
namespace {

constexpr std::size_t kLeastWindow = 4096;

// Faulting in by the kernel reports what a store would die of (SIGBUS of an exhausted huge page pool).
int populate(void* start, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(start) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(start) + bytes + page - 1) / page * page;
  while (madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINVAL || errno == ENOSYS) return 0;  // before Linux 5.14; the stores fault instead
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

// Before anything is written: a mapping that is only to be read would kill the process.
void open_for_writing(const std::vector<std::vector<Part>>& parts) {
  for (const auto& list : parts) {
    for (const Part& part : list) {
      if (!part.pool->writable()) throw std::invalid_argument("this memory is mapped for reading alone");
      part.pool->forget_cycles(part.offset, part.bytes);
    }
  }
}

std::uint64_t pattern_sum(const Part& part) {
  const std::uint64_t words = part.bytes / 8;
  const std::uint64_t pairs = words % 2 == 0 ? (words / 2) * (words + 1) : words * ((words + 1) / 2);
  return words * part.seed + kPatternStep * (words * (part.offset / 8) + pairs);
}

// A dependent loop: about a cycle a turn on any machine, where a pause takes 4 or 140.
void spin(std::uint64_t turns) {
  for (; turns > 0; --turns) __asm__ volatile("" : "+r"(turns));
}

// How the chaser and its loaders agree on when counting begins and ends.
class Signals {
 public:
  explicit Signals(std::size_t loaders) : loaders_(loaders) {}

  void warmed_up() { warm_.fetch_add(1, std::memory_order_release); }
  void wait_for_loaders() const {
    for (unsigned spins = 0; warm_.load(std::memory_order_acquire) < loaders_; ++spins) {
      if (spins < 100'000) {
        relax();
      } else {
        sched_yield();  // with fewer CPUs than threads the loaders must get to run
      }
    }
  }
  void begin() { phase_.store(1, std::memory_order_release); }
  void end() { phase_.store(2, std::memory_order_release); }
  bool begun() const { return phase_.load(std::memory_order_acquire) >= 1; }
  bool ended() const { return phase_.load(std::memory_order_acquire) == 2; }

 private:
  const std::size_t loaders_;
  std::atomic<std::size_t> warm_{0};
  std::atomic<int> phase_{0};
};

// Walks its parts, of which one has bytes, until the chase has ended. `position`: the bytes of them that were
// walked before, and then those that have been: a short walk that began at the same place each time would
// read the same few megabytes, from a cache. It counts in variables of its own: the reports of threads share
// lines of the cache.
ThreadReport load_until_ended(const Load& load, const std::vector<Part>& parts, Signals& signals,
                              std::size_t& position) {
  constexpr unsigned kWarmUpBlocks = 8;
  unsigned warm = 0;
  bool counting = false;
  double start = 0;
  std::uint64_t wrong = 0;
  std::uint64_t bytes = 0;
  std::size_t skip = position;
  for (;;) {
    std::size_t before = 0;
    for (const Part& part : parts) {
      for (std::size_t done = std::min(skip, part.bytes); done < part.bytes; done += load.block_bytes) {
        const Part block{part.pool, part.offset + done, std::min(load.block_bytes, part.bytes - done),
                         part.seed};
        const std::uint64_t sum = load.kernel->run(arrays_of(*load.kernel, block));
        wrong += sum != pattern_sum(block) ? 1 : 0;
        spin(load.delay);
        if (counting) {
          bytes += block.bytes;
        } else {
          if (warm < kWarmUpBlocks && ++warm == kWarmUpBlocks) signals.warmed_up();
          counting = signals.begun();
          start = now();
        }
        if (signals.ended()) {
          position = before + done + block.bytes;
          return ThreadReport{.start = start, .end = now(), .bytes = bytes, .value = wrong};
        }
      }
      skip -= std::min(skip, part.bytes);
      before += part.bytes;
    }
    skip = 0;  // of the rounds after the first
  }
}

bool walks_anything(const std::vector<Part>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.bytes > 0; });
}

}  // namespace

void Team::check(const std::vector<std::vector<Part>>& parts) const {
  if (parts.size() != cpus_.size()) throw std::invalid_argument("one list of parts per thread is needed");
  for (const auto& list : parts) {
    for (const Part& part : list) {
      const std::size_t size = part.pool->bytes();
      if (part.offset % 8 != 0 || part.bytes % 8 != 0)
        throw std::invalid_argument("parts are of 8-byte words");
      if (part.offset > size || part.bytes > size - part.offset)
        throw std::out_of_range("part outside its pool");
    }
  }
}

Region Team::touch(const std::vector<std::vector<Part>>& parts) {
  check(parts);
  open_for_writing(parts);
  return execute([&parts](std::size_t index, ThreadReport& report) {
    for (const Part& part : parts[index]) {
      std::uint64_t* data = part.pool->words() + part.offset / 8;
      // In slices, so that the pattern is written while the zeroed lines are still in the cache.
      constexpr std::size_t kSlice = std::size_t{2} << 20;
      for (std::size_t done = 0; done < part.bytes; done += kSlice) {
        const std::size_t size = std::min(kSlice, part.bytes - done);
        report.error = populate(data + done / 8, size);
        if (report.error != 0) return;
        write_pattern(data + done / 8, size / 8, (part.offset + done) / 8, part.seed);
        report.bytes += size;
      }
    }
  });
}

Region Team::verify(const std::vector<std::vector<Part>>& parts) {
  check(parts);
  return execute([&parts](std::size_t index, ThreadReport& report) {
    for (const Part& part : parts[index]) {
      const std::uint64_t* data = part.pool->words() + part.offset / 8;
      report.value += count_mismatches(data, part.bytes / 8, part.offset / 8, part.seed);
      report.bytes += part.bytes;
    }
  });
}

Region Team::prepare(const Kernel& kernel, const std::vector<std::vector<Part>>& parts) {
  check(parts);
  open_for_writing(parts);
  return execute([&kernel, &parts](std::size_t index, ThreadReport& report) {
    for (const Part& part : parts[index]) {
      k3gate::prepare(kernel, part);
      report.bytes += part.bytes;
    }
  });
}

Region Team::count_unwritten(const Kernel& kernel, const std::vector<std::vector<Part>>& parts) {
  check(parts);
  return execute([&kernel, &parts](std::size_t index, ThreadReport& report) {
    for (const Part& part : parts[index]) {
      report.value += k3gate::count_unwritten(kernel, part);
      report.bytes += arrays_of(kernel, part).words * 8;
    }
  });
}

Region Team::run(const Kernel& kernel, const std::vector<std::vector<Part>>& parts, std::uint64_t passes) {
  check(parts);
  if (kernel.stores()) {
    open_for_writing(parts);
    execute([&kernel, &parts](std::size_t index, ThreadReport&) {
      for (const Part& part : parts[index]) spoil_marks(kernel, part);
    });
  }
  Region region = execute([&kernel, &parts, passes](std::size_t index, ThreadReport& report) {
    for (std::uint64_t pass = 0; pass < passes; ++pass) {
      for (const Part& part : parts[index]) {
        const Arrays arrays = arrays_of(kernel, part);
        report.value += kernel.run(arrays);
        report.bytes += arrays.words * 8;
      }
    }
  });
  if (kernel.stores()) {
    const Region marks = execute([&kernel, &parts](std::size_t index, ThreadReport& report) {
      for (const Part& part : parts[index]) report.value += count_unwritten_marks(kernel, part);
    });
    for (std::size_t i = 0; i < marks.threads.size(); ++i) region.threads[i].value = marks.threads[i].value;
  }
  return region;
}

void Team::check_chase(std::size_t index, const Part& part, std::uint64_t steps, std::size_t start) const {
  if (index >= cpus_.size()) throw std::out_of_range("no such thread in the team");
  if (!part.pool->has_cycle(part.offset, part.bytes))
    throw std::invalid_argument("no cycle lies in this part now: build it first");
  if (steps == 0) throw std::invalid_argument("a chase needs at least one step");
  if (start % kChaseBlock != 0 || start / kChaseBlock >= part.bytes / kChaseBlock)
    throw std::out_of_range("a chase begins at a block of its part");
}

Region Team::build_cycle(std::size_t index, const Part& part, std::size_t window_bytes) {
  std::vector<std::vector<Part>> parts(cpus_.size());
  if (index >= cpus_.size()) throw std::out_of_range("no such thread in the team");
  parts[index].push_back(part);
  check(parts);
  if (part.bytes < 2 * kChaseBlock) throw std::invalid_argument("a cycle needs at least two blocks");
  if (window_bytes != 0 && window_bytes < kLeastWindow)
    throw std::invalid_argument("a window is of at least 4096 bytes");
  open_for_writing(parts);
  Region region = execute([&](std::size_t mine, ThreadReport& report) {
    if (mine != index) return;
    std::uint64_t* data = part.pool->words() + part.offset / 8;
    report.error = populate(data, part.bytes);
    if (report.error != 0) return;
    k3gate::build_cycle(data, part.bytes, part.seed, window_bytes);
    report.bytes = part.bytes;
  });
  if (region.threads[index].error == 0) part.pool->remember_cycle(part.offset, part.bytes);
  return region;
}

std::vector<double> Team::clocks() {
  std::vector<double> found(cpus_.size());
  execute([&](std::size_t mine, ThreadReport&) { found[mine] = achieved_clock(); });
  return found;
}

Chase Team::chase(std::size_t index, const Part& part, std::uint64_t steps, std::size_t start) {
  const std::vector<std::vector<Part>> none(cpus_.size());
  return chase_loaded(index, part, steps, start, Load{nullptr, &none, 0, 0});
}

Chase Team::chase_loaded(std::size_t index, const Part& part, std::uint64_t steps, std::size_t start,
                         const Load& load) {
  check_chase(index, part, steps, start);
  check(*load.parts);
  if (!(*load.parts)[index].empty()) throw std::invalid_argument("the thread that chases can not load too");
  const auto loaders = std::count_if(load.parts->begin(), load.parts->end(), walks_anything);
  if (loaders > 0 && (load.kernel == nullptr || load.kernel->stores()))
    throw std::invalid_argument("the load must be a kernel that only loads");
  if (loaders > 0 && (load.block_bytes == 0 || load.block_bytes % 8 != 0))
    throw std::invalid_argument("blocks are of 8-byte words");
  Signals signals(static_cast<std::size_t>(loaders));
  const auto base = reinterpret_cast<std::uintptr_t>(part.pool->words()) + part.offset;
  Chase chase;
  chase.steps = steps;
  chase.blocks = part.bytes / kChaseBlock;
  // Loaders stamp their own windows, which `execute` would widen to the whole of their work.
  std::vector<ThreadReport> windows(cpus_.size());
  Region region = execute([&](std::size_t mine, ThreadReport& report) {
    if (mine != index) {
      if (walks_anything((*load.parts)[mine]))
        windows[mine] = load_until_ended(load, (*load.parts)[mine], signals, load_positions_[mine]);
      return;
    }
    signals.wait_for_loaders();
    signals.begin();
    report.start = now();
    chase.end = static_cast<std::size_t>(walk(base + start, steps) - base);
    windows[mine] = ThreadReport{.start = report.start, .end = now()};
    signals.end();
  });
  bool first = true;
  double begun = 0;
  double ended = 0;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const ThreadReport& window = windows[i];
    if (window.end == 0) continue;  // had nothing to do
    ThreadReport& report = region.threads[i];
    report.start = window.start;
    report.end = window.end;
    report.bytes = window.bytes;
    report.value = window.value;
    if (i == index) continue;
    chase.load_bytes += window.bytes;
    begun = first ? window.start : std::min(begun, window.start);
    ended = first ? window.end : std::max(ended, window.end);
    first = false;
  }
  chase.load_seconds = ended - begun;
  chase.seconds = windows[index].end - windows[index].start;
  chase.threads = std::move(region.threads);
  return chase;
}

Chase Team::scatter(std::size_t index, const Part& part, std::uint64_t steps, std::uint64_t state) {
  std::vector<std::vector<Part>> parts(cpus_.size());
  if (index >= cpus_.size()) throw std::out_of_range("no such thread in the team");
  parts[index].push_back(part);
  check(parts);
  Chase chase;
  chase.steps = steps;
  chase.blocks = part.bytes / kChaseBlock;
  if (chase.blocks < 2) throw std::invalid_argument("a walk needs at least two blocks");
  if (steps == 0) throw std::invalid_argument("a walk needs at least one step");
  Region region = execute([&](std::size_t mine, ThreadReport& report) {
    if (mine != index) return;
    Scatter order(chase.blocks, part.seed, state);
    const double begun = now();
    report.value = walk_scattered(part.pool->words() + part.offset / 8, order, steps);
    chase.seconds = now() - begun;
    chase.end = order.state();
  });
  chase.threads = std::move(region.threads);
  return chase;
}

}  // namespace k3gate
