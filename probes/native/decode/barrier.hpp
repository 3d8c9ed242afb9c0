// Where threads wait for each other between the phases of a step.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../team.hpp"

namespace k3gate::decode {

// Spins, since sleeping would cost tens of microseconds a phase; yields after a while, as where threads are
// more than CPUs the one that is waited for must get to run. Threads of a node meet first, so that one line
// crosses from each node instead of one from each thread.
class Barrier {
 public:
  explicit Barrier(const std::vector<std::size_t>& threads_of_node) : nodes_(threads_of_node.size()) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].threads = threads_of_node[i];
  }

  void wait(std::size_t node) {
    Node& own = nodes_[node];
    const std::uint64_t round = own.released.load(std::memory_order_acquire);
    if (own.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != own.threads) {
      spin(own, round);
      return;
    }
    own.arrived.store(0, std::memory_order_relaxed);
    if (nodes_.size() > 1 && all_.fetch_add(1, std::memory_order_acq_rel) + 1 != nodes_.size()) {
      spin(own, round);
      return;
    }
    all_.store(0, std::memory_order_relaxed);
    for (Node& node_ : nodes_) node_.released.fetch_add(1, std::memory_order_release);
  }

 private:
  struct alignas(128) Node {
    std::atomic<std::uint64_t> released{0};
    alignas(64) std::atomic<std::size_t> arrived{0};
    std::size_t threads = 0;
  };

  static void spin(const Node& node, std::uint64_t round) {
    for (unsigned spins = 0; node.released.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < 4'000) {
        relax();
      } else {
        sched_yield();
      }
    }
  }

  std::vector<Node> nodes_;
  alignas(128) std::atomic<std::size_t> all_{0};
};

}  // namespace k3gate::decode
