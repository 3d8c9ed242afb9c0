// A walk in random order through memory of unknown content, each load waiting for the one before. No Python
// here.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace k3gate {

// Visits every block of a range once a turn, in an order that a few registers hold: a linear congruential
// generator of full period over the next power of two, its numbers mixed, those beyond the range left out.
class Scatter {
 public:
  // Needs two blocks. `state`: where an earlier walk ended; 0 begins a turn.
  Scatter(std::size_t blocks, std::uint64_t seed, std::uint64_t state)
      : blocks_(blocks),
        bits_(static_cast<unsigned>(std::bit_width(blocks - 1))),
        mask_((std::uint64_t{1} << bits_) - 1),
        // Multiplier 1 modulo 4 and an odd increment: the full period for every power of two.
        multiplier_((seed << 3) | 5),
        increment_((seed >> 32) | 1),
        state_(state) {}

  std::size_t next() {
    for (;;) {
      state_ = (state_ * multiplier_ + increment_) & mask_;
      const std::size_t block = mixed(state_);
      if (block < blocks_) return block;
    }
  }

  std::uint64_t state() const { return state_; }

 private:
  // One to one: low bits of such a generator have short periods, which the high ones break up.
  std::size_t mixed(std::uint64_t x) const {
    const unsigned half = (bits_ + 1) / 2;
    x ^= x >> half;
    x = (x * 0x9e3779b97f4a7c15ULL) & mask_;
    return static_cast<std::size_t>(x ^ (x >> half));
  }

  std::size_t blocks_;
  unsigned bits_;
  std::uint64_t mask_;
  std::uint64_t multiplier_;
  std::uint64_t increment_;
  std::uint64_t state_;
};

// Loads the first word of `steps` blocks of kChaseBlock bytes and returns what they add up to. The address of
// each load waits for the word before it, of which nothing is added to it; its place in the order waits for
// nothing, so that computing it hides behind the load.
std::uint64_t walk_scattered(const std::uint64_t* start, Scatter& order, std::uint64_t steps);

}  // namespace k3gate
