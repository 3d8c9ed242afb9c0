// Anonymous memory of a chosen page kind on a chosen node, or a mapped file, and what the kernel says of it.
// No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace k3gate {

enum class Pages {
  kSmall,         // the base page, explicitly (MADV_NOHUGEPAGE)
  kTransparent,   // MADV_HUGEPAGE, aligned to 2 MiB
  kReserved2MiB,  // a hugetlb pool as found
  kReserved1GiB,
};

// A private mapping, unmapped when the object goes. The constructor throws std::system_error where the
// kernel gives no memory. Its neighbours are inaccessible, so no other mapping merges with it in smaps.
class Pool {
 public:
  Pool(std::size_t bytes, Pages pages);
  // The first bytes of an open file, shared with whoever else maps it; `page_bytes`: of its file system. One
  // that is not `writable` can not be written to through this mapping.
  Pool(int file, std::size_t bytes, std::size_t page_bytes, bool writable);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Binds the untouched memory to one node (MPOL_BIND). Returns 0 or errno; a refusal leaves it unbound.
  int bind(int node);
  // Spreads the untouched memory over some nodes, page by page (MPOL_INTERLEAVE). Returns 0 or errno.
  int interleave(const std::vector<int>& nodes);

  // Asks move_pages where `samples` evenly spread pages lie: a node id, or a negative errno, each.
  // Returns 0 or errno of the call itself.
  int query_nodes(std::size_t samples, std::vector<int>& nodes) const;

  // How many bytes are in memory (mincore): of a file's, in the page cache or mapped. Returns 0 or errno.
  int count_resident(std::size_t& bytes) const;

  // Which ranges hold a cycle of pointers now: what writes to a range must forget its cycles, since following
  // what is no pointer would kill the process. Offsets and sizes in bytes.
  void remember_cycle(std::size_t offset, std::size_t bytes);
  void forget_cycles(std::size_t offset, std::size_t bytes);
  bool has_cycle(std::size_t offset, std::size_t bytes) const;

  // Releases the memory now; the object is empty afterwards. Safe to call twice.
  void close();

  std::uint64_t* words() const { return static_cast<std::uint64_t*>(start_); }
  std::size_t bytes() const { return bytes_; }
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(start_); }
  bool writable() const { return writable_; }
  // 0, or errno of the madvise that asked for the page kind (a kernel without THP has none to give).
  int advice_error() const { return advice_error_; }

 private:
  int set_policy(int policy, const std::vector<int>& nodes);

  void* region_ = nullptr;
  std::size_t region_bytes_ = 0;
  void* start_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t page_bytes_ = 0;
  int advice_error_ = 0;
  bool writable_ = true;
  std::vector<std::pair<std::size_t, std::size_t>> cycles_;  // offset, bytes
};

// Whether the pages of an open file are those of its device (statx); nothing where the kernel does not say.
std::optional<bool> file_is_dax(int file);

}  // namespace k3gate
