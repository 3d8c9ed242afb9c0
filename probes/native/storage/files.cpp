#include "files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <vector>

namespace k3gate::storage {
namespace {

constexpr std::uint64_t kWindow = std::uint64_t{1} << 30;
constexpr std::uint64_t kChunk = std::uint64_t{8} << 20;

// Blackman and Vigna's generator, seeded by splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t& word : state_) {
      seed += 0x9e3779b97f4a7c15ULL;
      std::uint64_t mixed = seed;
      mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
      mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
      word = mixed ^ (mixed >> 31);
    }
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

 private:
  std::uint64_t state_[4] = {};
};

}  // namespace

int count_resident(int file, std::uint64_t start, std::uint64_t bytes, std::uint64_t& pages,
                   std::uint64_t& resident) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t end = start + bytes;
  for (std::uint64_t at = start / page * page; at < end; at += kWindow) {
    const std::uint64_t size = std::min(kWindow, end - at);
    void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, static_cast<off_t>(at));
    if (memory == MAP_FAILED) return errno;
    std::vector<unsigned char> told((size + page - 1) / page);
    const int error = mincore(memory, size, told.data()) == 0 ? 0 : errno;
    munmap(memory, size);
    if (error != 0) return error;
    pages += told.size();
    for (const unsigned char one : told) resident += one & 1U;
  }
  return 0;
}

int write_random(int file, std::uint64_t start, std::uint64_t bytes, std::uint64_t seed) {
  std::vector<std::uint64_t> chunk(kChunk / sizeof(std::uint64_t));
  Random random(seed);
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t size = std::min(kChunk, bytes - done);
    for (std::uint64_t& word : chunk) word = random.next();
    const auto* from = reinterpret_cast<const char*>(chunk.data());
    for (std::uint64_t sent = 0; sent < size;) {
      const ssize_t took = pwrite(file, from + sent, size - sent, static_cast<off_t>(start + done + sent));
      if (took < 0 && errno != EINTR) return errno;
      sent += took > 0 ? static_cast<std::uint64_t>(took) : 0;
    }
    // A refusal costs nothing but memory: what is left is flushed at the end.
    sync_file_range(file, static_cast<off_t>(start + done), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
    done += size;
  }
  return 0;
}

}  // namespace k3gate::storage
