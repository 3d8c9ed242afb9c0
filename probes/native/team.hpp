// Threads pinned one to a CPU that touch, verify and run kernels together. No Python here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "kernels.hpp"

namespace k3gate {

// Per thread, in the order of the team's CPUs. Seconds are of CLOCK_MONOTONIC.
struct ThreadReport {
  double start = 0;
  double end = 0;
  std::uint64_t bytes = 0;  // walked in one array, all passes: 8 for each word of the kernel's traffic
  std::uint64_t value = 0;  // checksum of a kernel that loads; words or blocks found wrong, for all else
  int cpu_before = -1;      // getcpu, at the start and at the end of the timed region
  int cpu_after = -1;
  int error = 0;  // errno of populating; 0 when all went well
};

struct Region {
  double seconds = 0;  // last end - first start
  std::vector<ThreadReport> threads;
};

// What a walk along a cycle took. The threads' windows lie in `threads`, as in any region.
struct Chase {
  double seconds = 0;        // of the walk alone
  std::uint64_t steps = 0;   // loads, one after the other
  std::uint64_t blocks = 0;  // of the cycle: after so many steps it is back where it began
  std::size_t end = 0;       // bytes from the range's start; the state of a scattered walk
  double load_seconds = 0;   // last end - first start of the loaders' counted windows
  std::uint64_t load_bytes = 0;
  std::vector<ThreadReport> threads;
};

// What the other threads do while one chases: a kernel that only loads walks their parts, block by block,
// over and over; after each block `delay` turns of an empty loop.
struct Load {
  const Kernel* kernel;
  const std::vector<std::vector<Part>>* parts;  // a list per thread; the chaser's is empty
  std::uint64_t delay;
  std::size_t block_bytes;
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

  // Runs any work on all threads at once, each timed; `work` gets the thread's index and report, and must not
  // throw.
  using Work = std::function<void(std::size_t, ThreadReport&)>;
  Region execute(const Work& work);

  // Each thread works on its own list of parts; `parts` has one list per CPU (it may be empty).
  // First touch: faults the pages in, then writes the pattern.
  Region touch(const std::vector<std::vector<Part>>& parts);
  Region verify(const std::vector<std::vector<Part>>& parts);
  // Fills the parts for a kernel, as `prepare` of arrays.hpp does: a kernel that stores destroys the pattern.
  Region prepare(const Kernel& kernel, const std::vector<std::vector<Part>>& parts);
  // Reads back what a kernel that stores has left; `value` counts the words that are wrong.
  Region count_unwritten(const Kernel& kernel, const std::vector<std::vector<Part>>& parts);
  // Runs the kernel `passes` times over all parts. Of a kernel that stores, `value` is how many of the words
  // that were spoilt before the region are wrong after it.
  Region run(const Kernel& kernel, const std::vector<std::vector<Part>>& parts, std::uint64_t passes);

  // The clock that each thread's core achieves right after the work before, in hertz; 0 where it is not
  // known.
  std::vector<double> clocks();

  // Thread `index` faults the part in and links it into a cycle (see chase.hpp), by the part's seed.
  Region build_cycle(std::size_t index, const Part& part, std::size_t window_bytes);
  // Thread `index` follows a cycle that was built over this very part, from `start` bytes into it.
  Chase chase(std::size_t index, const Part& part, std::uint64_t steps, std::size_t start);
  // The same under load. It begins once every loader has walked a few blocks, and the loaders' bytes and
  // times are counted from their first block after that to the first that ends after the chase. Their `value`
  // counts blocks whose sum was not the pattern's. A loader goes on where its last walk ended, so that short
  // walks come through all of its parts; of other parts it begins as many bytes in, or where they end, anew.
  Chase chase_loaded(std::size_t index, const Part& part, std::uint64_t steps, std::size_t start,
                     const Load& load);

  // Thread `index` loads the blocks of a part in an order of the part's seed, whatever they hold (see
  // scatter.hpp). `state`: 0, or the `end` of the walk before; `value` of the thread is the sum of the words.
  Chase scatter(std::size_t index, const Part& part, std::uint64_t steps, std::uint64_t state);

 private:
  void loop(std::size_t index);
  void arrive_and_spin();
  void stop();
  void check(const std::vector<std::vector<Part>>& parts) const;
  void check_chase(std::size_t index, const Part& part, std::uint64_t steps, std::size_t start) const;

  std::vector<int> cpus_;
  std::vector<int> pin_errors_;
  std::vector<std::size_t> load_positions_;  // of each thread, in bytes into its parts
  std::vector<ThreadReport> reports_;
  const Work* work_ = nullptr;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<std::uint64_t> arrived_{0};
  std::atomic<std::uint64_t> released_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;
};

// Seconds of CLOCK_MONOTONIC.
double now();

// Lets the other thread of the core work while this one spins.
void relax();

// The CPUs that the calling thread may run on; the mask grows until the kernel takes it.
std::vector<int> allowed_cpus();

}  // namespace k3gate
