// Zeroed memory at a line of 64 bytes, as kernels want it; where it is large, of huge pages if they are to be
// had.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace k3gate::gemm {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const std::size_t unit = bytes < kHuge / 4 ? 64 : kHuge;
    const std::size_t whole = (bytes + unit - 1) / unit * unit;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(unit, whole)));
    if (memory_ == nullptr) throw std::bad_alloc();
    if (unit == kHuge) madvise(memory_.get(), whole, MADV_HUGEPAGE);
    std::memset(memory_.get(), 0, bytes);
  }

  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr std::size_t kHuge = std::size_t{2} << 20;

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace k3gate::gemm
