// Timed products over weights that rotate through a pool far beyond the caches, each with its proof. No
// Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../team.hpp"
#include "expert.hpp"
#include "gemm.hpp"
#include "reference.hpp"

namespace k3gate::gemm {

class Trial {
 public:
  // One matrix [rows, depth] an item; or, of an expert, [2 x rows, depth] and [depth, rows]. Fills the pool
  // with as many items as go in: random weights packed once, the tiles of each copy in another order, so that
  // one copy is not taken for another. The pool is bound to `node`, or to none below 0. Throws
  // std::invalid_argument where not one goes in, std::system_error where there is no memory.
  Trial(const Variant& variant, bool expert, std::size_t rows, std::size_t depth, std::size_t pool_bytes,
        Pages pages, int node, std::uint64_t seed);

  std::size_t items() const { return items_.size(); }
  Pool& pool() { return pool_; }
  int bind_error() const { return bind_error_; }  // errno of binding the pool; 0 where it went well
  double bytes_per_item() const;                  // as the format has it, see format_bytes
  std::size_t packed_bytes() const {
    return item_bytes_;
  }  // as they lie in the pool, for this spread of scales
  double flops_per_item(std::size_t tokens) const;

  // Each thread of the team multiplies `calls` items, the next ones of the pool in turn, with the tokens'
  // activations; the last call's output was filled with NaN beforehand. Activations are rounded within each
  // call. Per thread `bytes` is that of the format for all its calls.
  Region run(Team& team, std::size_t tokens, std::uint64_t calls);

  // The same with a trial for each thread of the team, as where each memory node has one: they may repeat.
  static Region run_together(Team& team, const std::vector<Trial*>& trial_of_thread, std::size_t tokens,
                             std::uint64_t calls);

  // What the last run left, recomputed from the weights that it read, unpacked from the pool: `sampled`
  // random rows of each product of each thread, and all outputs against poison.
  Comparison check(std::size_t sampled, std::uint64_t seed) const;

  // The last call's output of a thread: [tokens, columns], for who wants to see the check fail.
  float* output(std::size_t thread) const;
  std::size_t columns() const { return expert_ ? depth_ : rows_; }

 private:
  struct Item {
    std::vector<std::size_t> tiles[2];
    Packed packed[2];
  };
  struct Thread {
    ExpertWorkspace workspace;
    std::vector<std::uint16_t> activations;
    Buffer outputs[2];
    std::size_t tokens = 0;  // prepared for so many
    std::size_t last = 0;    // item
  };

  void fill(std::uint64_t seed);
  void prepare(std::size_t slot, std::size_t tokens);
  void call(Thread& thread, std::size_t item, std::size_t tokens, float* output) const;

  const Variant variant_;
  const bool expert_;
  const std::size_t rows_;
  const std::size_t depth_;
  Pool pool_;
  int bind_error_ = 0;
  std::size_t item_bytes_ = 0;
  std::vector<Item> items_;
  std::vector<Thread> threads_;
  std::size_t slots_ = 0;  // threads of the last run
  std::size_t tokens_ = 0;
  std::size_t next_ = 0;
  std::uint64_t seed_;
};

}  // namespace k3gate::gemm
