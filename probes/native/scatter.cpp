#include "scatter.hpp"

#include "chase.hpp"

namespace k3gate {

std::uint64_t walk_scattered(const std::uint64_t* start, Scatter& order, std::uint64_t steps) {
  constexpr std::size_t kStep = kChaseBlock / sizeof(std::uint64_t);
  std::uint64_t nothing = 0;
  __asm__ volatile("" : "+r"(nothing));  // for all that the compiler knows, it keeps some of the word
  std::uint64_t word = 0;
  std::uint64_t sum = 0;
  for (; steps > 0; --steps) {
    const std::size_t at = order.next() * kStep + static_cast<std::size_t>(word & nothing);
    word = *static_cast<const volatile std::uint64_t*>(start + at);
    sum += word;
  }
  return sum;
}

}  // namespace k3gate
