// Pinned threads that read ranges of open files block by block, with many reads under way. No Python here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace k3gate::storage {

// A range of an open file. Its start and size are whole blocks.
struct Range {
  int file;
  std::uint64_t start;
  std::uint64_t bytes;
};

// What a thread did in a region. Seconds are of CLOCK_MONOTONIC, and of the thread's own CPU time.
struct ReadReport {
  double start = 0;
  double end = 0;
  double cpu_seconds = 0;
  std::uint64_t bytes = 0;
  std::uint64_t reads = 0;
  int cpu_before = -1;
  int cpu_after = -1;
  int error = 0;         // errno of the read that failed; ENODATA where a file ended too early
  int file = -1;         // of the read that failed
  std::uint64_t at = 0;  // its offset
};

struct ReadRegion {
  double seconds = 0;  // last end - first start
  std::vector<ReadReport> threads;
};

// Each thread reads its own ranges in their order, over and over, `depth` blocks at a time; the next region
// goes on where the last one ended. Beyond a depth of 1 reads go through Linux's own asynchronous interface
// (io_submit).
class Reader {
 public:
  // `cpus`: one per list of ranges, or none where threads are not pinned. Throws std::system_error where the
  // kernel gives no memory or no queue, std::invalid_argument for ranges that are no whole blocks. `huge`:
  // whether blocks come into transparent huge pages, where a block is one piece for the drive, or into base
  // pages.
  Reader(std::vector<std::vector<Range>> ranges, std::size_t block_bytes, unsigned depth,
         std::vector<int> cpus, bool huge = true);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Reads until `seconds` have passed, all that is under way has come, or `stop` was called.
  ReadRegion run(double seconds);
  // From another thread: ends the region under way as if its time was over.
  void stop() { stopping_.store(true); }

 private:
  class Worker;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<bool> stopping_{false};
};

}  // namespace k3gate::storage
