#include "direct_reader.hpp"

#include <linux/aio_abi.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <latch>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace k3gate::storage {
namespace {

constexpr std::size_t kHugePage = 2U << 20;
constexpr unsigned kMostDepth = 1024;

double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

// Memory for the blocks under way, in huge pages where there are some: pinning it for each read costs less.
class Buffer {
 public:
  Buffer(std::size_t bytes, bool huge) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
    void* start = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) fail(errno, "no memory for the blocks that are read");
    start_ = static_cast<std::byte*>(start);
    madvise(start_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  ~Buffer() { munmap(start_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* at(std::size_t offset) const { return start_ + offset; }
  void touch() { std::memset(start_, 1, bytes_); }

 private:
  std::size_t bytes_;
  std::byte* start_ = nullptr;
};

// A queue of Linux's asynchronous reads; libaio would only wrap these four calls.
class Queue {
 public:
  explicit Queue(unsigned depth) {
    if (syscall(SYS_io_setup, depth, &context_) != 0) fail(errno, "io_setup");
  }
  ~Queue() { syscall(SYS_io_destroy, context_); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Returns how many were taken, or a negative errno.
  long submit(long count, iocb** blocks) {
    const long taken = syscall(SYS_io_submit, context_, count, blocks);
    return taken < 0 ? -errno : taken;
  }
  // Waits for at least one. Returns how many came, or a negative errno.
  long wait(long most, io_event* events) {
    for (;;) {
      const long came = syscall(SYS_io_getevents, context_, 1L, most, events, nullptr);
      if (came >= 0) return came;
      if (errno != EINTR) return -errno;
    }
  }

 private:
  aio_context_t context_ = 0;
};

}  // namespace

class Reader::Worker {
 public:
  Worker(std::vector<Range> ranges, std::size_t block, unsigned depth, int cpu, bool huge)
      : ranges_(std::move(ranges)), block_(block), depth_(depth), cpu_(cpu), buffer_(block * depth, huge) {
    if (depth_ > 1) queue_ = std::make_unique<Queue>(depth_);
    controls_.resize(depth_);
  }

  void run(double seconds, const std::atomic<bool>& stopping, std::latch& start, ReadReport& report) {
    pin(report);
    if (!touched_) {
      buffer_.touch();  // on the node of the CPU that it now runs on
      touched_ = true;
    }
    start.arrive_and_wait();
    if (report.error != 0) return;
    report.cpu_before = sched_getcpu();
    const double cpu_begun = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    report.start = clock_seconds(CLOCK_MONOTONIC);
    const double until = report.start + seconds;
    if (depth_ == 1) {
      read_one_by_one(until, stopping, report);
    } else {
      read_many(until, stopping, report);
    }
    report.end = clock_seconds(CLOCK_MONOTONIC);
    report.cpu_seconds = clock_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_begun;
    report.cpu_after = sched_getcpu();
  }

 private:
  void pin(ReadReport& report) const {
    if (cpu_ < 0) return;
    const auto number = static_cast<std::size_t>(cpu_);
    const std::size_t size = CPU_ALLOC_SIZE(number + 1);
    cpu_set_t* set = CPU_ALLOC(number + 1);
    CPU_ZERO_S(size, set);
    CPU_SET_S(number, size, set);
    if (sched_setaffinity(0, size, set) != 0) report.error = errno;
    CPU_FREE(set);
  }

  // The next block in order; from the last one on it begins again.
  std::pair<int, std::uint64_t> next() {
    const Range& range = ranges_[range_];
    const std::pair<int, std::uint64_t> found{range.file, range.start + offset_};
    offset_ += block_;
    if (offset_ >= range.bytes) {
      offset_ = 0;
      range_ = (range_ + 1) % ranges_.size();
    }
    return found;
  }

  void take(std::int64_t result, int file, std::uint64_t at, ReadReport& report) const {
    if (result == static_cast<std::int64_t>(block_)) {
      report.bytes += block_;
      ++report.reads;
      return;
    }
    if (report.error != 0) return;
    report.error = result < 0 ? static_cast<int>(-result) : ENODATA;
    report.file = file;
    report.at = at;
  }

  void read_one_by_one(double until, const std::atomic<bool>& stopping, ReadReport& report) {
    while (report.error == 0 && !stopping.load(std::memory_order_relaxed) &&
           clock_seconds(CLOCK_MONOTONIC) < until) {
      const auto [file, at] = next();
      ssize_t result = 0;
      do {
        result = pread(file, buffer_.at(0), block_, static_cast<off_t>(at));
      } while (result < 0 && errno == EINTR);
      take(result < 0 ? -errno : result, file, at, report);
    }
  }

  void read_many(double until, const std::atomic<bool>& stopping, ReadReport& report) {
    std::vector<iocb*> ready;
    std::vector<io_event> events(depth_);
    for (iocb& control : controls_) ready.push_back(&control);
    std::size_t under_way = 0;
    for (;;) {
      const bool go_on = report.error == 0 && !stopping.load(std::memory_order_relaxed) &&
                         clock_seconds(CLOCK_MONOTONIC) < until;
      if (go_on && !ready.empty()) under_way += submit(ready, report);
      if (under_way == 0) {
        if (!go_on || report.error != 0) return;
        continue;
      }
      const long came = queue_->wait(static_cast<long>(under_way), events.data());
      if (came < 0) {
        // Reads may still be under way: the queue's end waits for them before the buffer goes.
        if (report.error == 0) report.error = static_cast<int>(-came);
        return;
      }
      for (long index = 0; index < came; ++index) {
        const io_event& event = events[static_cast<std::size_t>(index)];
        auto* control = reinterpret_cast<iocb*>(event.obj);
        take(event.res, static_cast<int>(control->aio_fildes),
             static_cast<std::uint64_t>(control->aio_offset), report);
        ready.push_back(control);
      }
      under_way -= static_cast<std::size_t>(came);
    }
  }

  // Sends all that is ready; what the kernel does not take yet stays ready. Returns how many it took.
  std::size_t submit(std::vector<iocb*>& ready, ReadReport& report) {
    for (iocb* control : ready) {
      if (control->aio_nbytes != 0 && control->aio_buf != 0 && control->aio_data == 1)
        continue;  // prepared before
      const auto [file, at] = next();
      const auto index = static_cast<std::size_t>(control - controls_.data());
      std::memset(control, 0, sizeof *control);
      control->aio_lio_opcode = IOCB_CMD_PREAD;
      control->aio_fildes = static_cast<std::uint32_t>(file);
      control->aio_buf = reinterpret_cast<std::uint64_t>(buffer_.at(index * block_));
      control->aio_nbytes = block_;
      control->aio_offset = static_cast<std::int64_t>(at);
      control->aio_data = 1;
    }
    const long taken = queue_->submit(static_cast<long>(ready.size()), ready.data());
    if (taken < 0) {
      if (taken != -EAGAIN && taken != -EINTR && report.error == 0) {
        report.error = static_cast<int>(-taken);
        report.file = static_cast<int>(ready.front()->aio_fildes);
        report.at = static_cast<std::uint64_t>(ready.front()->aio_offset);
      }
      return 0;
    }
    for (long index = 0; index < taken; ++index) ready[static_cast<std::size_t>(index)]->aio_data = 0;
    ready.erase(ready.begin(), ready.begin() + taken);
    return static_cast<std::size_t>(taken);
  }

  std::vector<Range> ranges_;
  std::size_t block_;
  unsigned depth_;
  int cpu_;
  Buffer buffer_;
  std::unique_ptr<Queue> queue_;  // ends before the buffer, into which it reads
  std::vector<iocb> controls_;
  std::size_t range_ = 0;
  std::uint64_t offset_ = 0;
  bool touched_ = false;
};

Reader::Reader(std::vector<std::vector<Range>> ranges, std::size_t block_bytes, unsigned depth,
               std::vector<int> cpus, bool huge) {
  if (block_bytes == 0 || depth == 0 || depth > kMostDepth || ranges.empty())
    throw std::invalid_argument("reading needs ranges, a block and a depth of 1 to 1024");
  if (!cpus.empty() && cpus.size() != ranges.size())
    throw std::invalid_argument("reading needs a CPU for each list of ranges, or none");
  for (std::size_t index = 0; index < ranges.size(); ++index) {
    if (ranges[index].empty()) throw std::invalid_argument("a thread has no range to read");
    for (const Range& range : ranges[index]) {
      if (range.bytes == 0 || range.bytes % block_bytes != 0)
        throw std::invalid_argument("a range is no whole number of blocks");
    }
    workers_.push_back(std::make_unique<Worker>(std::move(ranges[index]), block_bytes, depth,
                                                cpus.empty() ? -1 : cpus[index], huge));
  }
}

Reader::~Reader() = default;

ReadRegion Reader::run(double seconds) {
  stopping_.store(false);
  ReadRegion region;
  region.threads.resize(workers_.size());
  std::latch start(static_cast<std::ptrdiff_t>(workers_.size()));
  {
    std::vector<std::jthread> threads;
    for (std::size_t index = 0; index < workers_.size(); ++index) {
      threads.emplace_back([this, index, seconds, &start, &region] {
        workers_[index]->run(seconds, stopping_, start, region.threads[index]);
      });
    }
  }
  double first = 0;
  double last = 0;
  for (const ReadReport& report : region.threads) {
    if (report.end == 0) continue;
    first = first == 0 ? report.start : std::min(first, report.start);
    last = std::max(last, report.end);
  }
  region.seconds = last - first;
  return region;
}

}  // namespace k3gate::storage
