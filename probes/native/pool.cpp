#include "pool.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <stdexcept>
#include <system_error>

namespace k3gate {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kGiant = std::size_t{1} << 30;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

std::size_t round_up(std::size_t value, std::size_t unit) {
  if (value > std::numeric_limits<std::size_t>::max() / 2) throw std::length_error("pool too large");
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Pool::Pool(std::size_t bytes, Pages pages) {
  if (bytes == 0) throw std::invalid_argument("a pool needs at least one byte");
  const bool reserved = pages == Pages::kReserved2MiB || pages == Pages::kReserved1GiB;
  const auto base = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  page_bytes_ = pages == Pages::kSmall ? base : pages == Pages::kReserved1GiB ? kGiant : kHuge;
  bytes_ = round_up(bytes, page_bytes_);
  if (reserved) {
    const int size = pages == Pages::kReserved1GiB ? MAP_HUGE_1GB : MAP_HUGE_2MB;
    region_bytes_ = bytes_;
    void* region = mmap(nullptr, region_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size, -1, 0);
    if (region == MAP_FAILED) fail("mmap of huge pages");
    region_ = start_ = region;
    return;
  }
  region_bytes_ = bytes_ + 2 * kHuge;
  void* region = mmap(nullptr, region_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) fail("mmap");
  region_ = region;
  const auto first = round_up(reinterpret_cast<std::uintptr_t>(region) + 1, kHuge);
  start_ = reinterpret_cast<void*>(first);
  if (mprotect(start_, bytes_, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    close();
    errno = error;
    fail("mprotect");
  }
  const int advice = pages == Pages::kSmall ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
  if (madvise(start_, bytes_, advice) != 0) advice_error_ = errno;
}

Pool::Pool(int file, std::size_t bytes, std::size_t page_bytes, bool writable)
    : region_bytes_(bytes), bytes_(bytes), page_bytes_(page_bytes), writable_(writable) {
  if (bytes == 0 || page_bytes == 0 || bytes % page_bytes != 0)
    throw std::invalid_argument("a file is mapped in whole pages");
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* region = mmap(nullptr, bytes, access, MAP_SHARED, file, 0);
  if (region == MAP_FAILED) fail("mmap of the file");
  region_ = start_ = region;
}

Pool::~Pool() { close(); }

void Pool::close() {
  if (region_ != nullptr) munmap(region_, region_bytes_);
  region_ = start_ = nullptr;
  bytes_ = region_bytes_ = 0;
  cycles_.clear();
}

void Pool::remember_cycle(std::size_t offset, std::size_t bytes) { cycles_.emplace_back(offset, bytes); }

void Pool::forget_cycles(std::size_t offset, std::size_t bytes) {
  std::erase_if(cycles_, [=](const auto& cycle) {
    return cycle.first < offset + bytes && offset < cycle.first + cycle.second;
  });
}

bool Pool::has_cycle(std::size_t offset, std::size_t bytes) const {
  return std::find(cycles_.begin(), cycles_.end(), std::pair{offset, bytes}) != cycles_.end();
}

int Pool::bind(int node) { return set_policy(MPOL_BIND, {node}); }

int Pool::interleave(const std::vector<int>& nodes) { return set_policy(MPOL_INTERLEAVE, nodes); }

int Pool::set_policy(int policy, const std::vector<int>& nodes) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int node : nodes) {
    if (node < 0 || node >= 1 << 16) return EINVAL;
    const auto word = static_cast<std::size_t>(node) / kBits;
    if (mask.size() <= word) mask.resize(word + 1, 0);
    mask[word] |= 1UL << (static_cast<std::size_t>(node) % kBits);
  }
  // The kernel takes one bit less than it is told.
  const long result =
      syscall(SYS_mbind, start_, bytes_, policy, mask.data(), mask.size() * kBits + 1, MPOL_MF_STRICT);
  return result == 0 ? 0 : errno;
}

int Pool::query_nodes(std::size_t samples, std::vector<int>& nodes) const {
  const std::size_t pages = bytes_ / page_bytes_;
  const std::size_t count = std::min(samples, pages);
  std::vector<void*> addresses(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Spread without multiplying the two large numbers; the first and the last page are among them.
    const std::size_t page =
        count > 1 ? static_cast<std::size_t>(static_cast<double>(pages - 1) * static_cast<double>(i) /
                                             static_cast<double>(count - 1))
                  : 0;
    addresses[i] = static_cast<char*>(start_) + page * page_bytes_;
  }
  nodes.assign(count, -ENOENT);
  if (count == 0) return 0;
  const long result = syscall(SYS_move_pages, 0, count, addresses.data(), nullptr, nodes.data(), 0);
  return result >= 0 ? 0 : errno;
}

int Pool::count_resident(std::size_t& bytes) const {
  constexpr std::size_t kSlice = std::size_t{1} << 30;
  const auto base = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(kSlice / base);
  bytes = 0;
  for (std::size_t done = 0; done < bytes_; done += kSlice) {
    const std::size_t size = std::min(kSlice, bytes_ - done);
    if (mincore(static_cast<char*>(start_) + done, size, pages.data()) != 0) return errno;
    const auto end = pages.begin() + static_cast<std::ptrdiff_t>((size + base - 1) / base);
    bytes += base * static_cast<std::size_t>(std::count_if(
                        pages.begin(), end, [](unsigned char page) { return (page & 1U) != 0; }));
  }
  bytes = std::min(bytes, bytes_);
  return 0;
}

std::optional<bool> file_is_dax(int file) {
  constexpr std::uint64_t kDax = 0x00200000;  // STATX_ATTR_DAX
  struct statx found {};
  if (statx(file, "", AT_EMPTY_PATH, 0, &found) != 0) return std::nullopt;
  if ((found.stx_attributes_mask & kDax) == 0) return std::nullopt;
  return (found.stx_attributes & kDax) != 0;
}

}  // namespace k3gate
