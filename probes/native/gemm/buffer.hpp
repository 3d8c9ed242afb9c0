// Zeroed memory at a line of 64 bytes, as kernels want it.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace k3gate::gemm {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
    std::memset(memory_.get(), 0, bytes);
  }

  std::byte* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace k3gate::gemm
