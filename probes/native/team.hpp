// Threads pinned one to a CPU that touch, verify and run kernels together. No Python here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels.hpp"
#include "pool.hpp"

namespace k3gate {

// A range of a pool that one thread works on. `offset` and `bytes` are multiples of 8.
struct Part {
  Pool* pool;
  std::size_t offset;
  std::size_t bytes;
  std::uint64_t seed = 0;  // of the pool's pattern; for touching and verifying
};

// Per thread, in the order of the team's CPUs. Seconds are of CLOCK_MONOTONIC.
struct ThreadReport {
  double start = 0;
  double end = 0;
  std::uint64_t bytes = 0;  // walked, all passes
  std::uint64_t value = 0;  // checksum of the kernel; words that differ, when verifying
  int cpu_before = -1;      // getcpu, at the start and at the end of the timed region
  int cpu_after = -1;
  int error = 0;  // errno of populating; 0 when all went well
};

struct Region {
  double seconds = 0;  // last end - first start
  std::vector<ThreadReport> threads;
};

class Team {
 public:
  // Starts one thread per CPU and pins it; throws std::system_error naming the CPU where that is refused.
  explicit Team(std::vector<int> cpus);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const std::vector<int>& cpus() const { return cpus_; }
  // The affinity of each thread as the kernel gives it back: CPU ids.
  std::vector<std::vector<int>> affinities();

  // Each thread works on its own list of parts; `parts` has one list per CPU (it may be empty).
  // First touch: faults the pages in, then writes the pattern.
  Region touch(const std::vector<std::vector<Part>>& parts);
  Region verify(const std::vector<std::vector<Part>>& parts);
  // Runs the kernel `passes` times over all parts.
  Region run(const Kernel& kernel, const std::vector<std::vector<Part>>& parts, std::uint64_t passes);

 private:
  using Work = std::function<void(std::size_t, ThreadReport&)>;
  Region execute(const Work& work);
  void loop(std::size_t index);
  void arrive_and_spin();
  void stop();
  void check(const std::vector<std::vector<Part>>& parts) const;

  std::vector<int> cpus_;
  std::vector<int> pin_errors_;
  std::vector<ThreadReport> reports_;
  const Work* work_ = nullptr;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint64_t> arrived_{0};
  std::atomic<std::uint64_t> released_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;
};

// The CPUs that the calling thread may run on; the mask grows until the kernel takes it.
std::vector<int> allowed_cpus();

}  // namespace k3gate
