#include "trial.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>

#include "random_weights.hpp"

namespace k3gate::gemm {
namespace {

constexpr int kSpread = 2;
constexpr std::size_t kMostFillers = 16;
constexpr std::uint64_t kMostCalls = 1'000'000'000;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// A copy of packed tiles that begins with tile `first` and goes round.
void copy_turned(const std::vector<std::byte>& from, const std::vector<std::size_t>& tiles, std::size_t first,
                 std::byte* to, std::vector<std::size_t>& to_tiles) {
  const std::size_t count = tiles.size() - 1;
  std::size_t at = 0;
  to_tiles.assign(1, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t tile = (first + i) % count;
    const std::size_t size = tiles[tile + 1] - tiles[tile];
    std::memcpy(to + at, from.data() + tiles[tile], size);
    at += size;
    to_tiles.push_back(at);
  }
}

}  // namespace

Trial::Trial(const Variant& variant, bool expert, std::size_t rows, std::size_t depth, std::size_t pool_bytes,
             Pages pages, int node, std::uint64_t seed)
    : variant_(variant), expert_(expert), rows_(rows), depth_(depth), pool_(pool_bytes, pages), seed_(seed) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (rows == 0 || depth == 0 || rows > kMost || depth > kMost)
    throw std::invalid_argument("rows and depth are at least 1 and bounded");
  if (expert && rows % kGroup != 0)
    throw std::invalid_argument("an expert's inner width is a multiple of 32");
  if (node >= 0) bind_error_ = pool_.bind(node);
  fill(seed);
}

void Trial::fill(std::uint64_t seed) {
  std::mt19937_64 dice(seed);
  std::vector<std::byte> bytes[2];
  std::vector<std::size_t> tiles[2];
  std::size_t shapes[2][2] = {{expert_ ? 2 * rows_ : rows_, depth_}, {depth_, rows_}};
  const std::size_t matrices = expert_ ? 2 : 1;
  std::size_t starts[3] = {};
  for (std::size_t i = 0; i < matrices; ++i) {
    const OwnedSource source = random_weights(variant_.format, shapes[i][0], shapes[i][1], kSpread, dice);
    bytes[i] = pack(source.view(), tiles[i]);
    starts[i + 1] = starts[i] + round_up(bytes[i].size(), 4096);
  }
  item_bytes_ = bytes[0].size() + bytes[1].size();
  const std::size_t count = pool_.bytes() / starts[matrices];
  if (count == 0) throw std::invalid_argument("the pool holds not one of these");
  items_.resize(count);
  auto* const base = reinterpret_cast<std::byte*>(pool_.words());
  // What no item takes is touched too, so that the pages of the whole pool can be checked.
  std::memset(base + count * starts[matrices], 0, pool_.bytes() - count * starts[matrices]);
  const auto copy = [&](std::size_t item) {
    for (std::size_t i = 0; i < matrices; ++i) {
      std::byte* const to = base + item * starts[matrices] + starts[i];
      // Only whole tiles may come before others.
      const std::size_t first = shapes[i][0] % kTileRows == 0 ? item % (tiles[i].size() - 1) : 0;
      copy_turned(bytes[i], tiles[i], first, to, items_[item].tiles[i]);
      items_[item].packed[i] =
          Packed{variant_.format, shapes[i][0], shapes[i][1], to, &items_[item].tiles[i]};
    }
  };
  const std::size_t threads = std::min({kMostFillers, allowed_cpus().size(), count});
  std::vector<std::jthread> fillers;
  for (std::size_t own = 0; own < threads; ++own) {
    fillers.emplace_back([&copy, own, threads, count] {
      for (std::size_t item = own; item < count; item += threads) copy(item);
    });
  }
}

double Trial::bytes_per_item() const {
  const double first = format_bytes(variant_.format, expert_ ? 2 * rows_ : rows_, depth_);
  return expert_ ? first + format_bytes(variant_.format, depth_, rows_) : first;
}

double Trial::flops_per_item(std::size_t tokens) const {
  return (expert_ ? 3 : 1) * flops(tokens, rows_, depth_);
}

float* Trial::output(std::size_t thread) const { return threads_.at(thread).outputs[1].as<float>(); }

// Runs on the thread that will use it, so that its memory lies on that thread's node.
void Trial::prepare(std::size_t slot, std::size_t tokens) {
  Thread& thread = threads_[slot];
  if (thread.tokens != tokens) {
    std::mt19937_64 dice(seed_ + tokens + slot);
    if (expert_) {
      thread.workspace.reserve(tokens, depth_, rows_);
    } else {
      thread.workspace.products().reserve(tokens, depth_);
    }
    thread.activations = random_activations(tokens, depth_, dice);
    for (Buffer& output : thread.outputs) output = Buffer(tokens * columns() * sizeof(float));
    thread.tokens = tokens;
  }
  for (const Buffer& output : thread.outputs)
    std::fill_n(output.as<float>(), tokens * columns(), std::numeric_limits<float>::quiet_NaN());
}

void Trial::call(Thread& thread, std::size_t item, std::size_t tokens, float* output) const {
  const Item& weights = items_[item];
  if (expert_) {
    run_expert(variant_, {&weights.packed[0], &weights.packed[1], thread.activations.data(), output, tokens,
                          &thread.workspace});
  } else {
    variant_.run(
        {&weights.packed[0], thread.activations.data(), output, tokens, &thread.workspace.products()});
  }
  thread.last = item;
}

Region Trial::run(Team& team, std::size_t tokens, std::uint64_t calls) {
  return run_together(team, std::vector<Trial*>(team.cpus().size(), this), tokens, calls);
}

Region Trial::run_together(Team& team, const std::vector<Trial*>& trial_of_thread, std::size_t tokens,
                           std::uint64_t calls) {
  if (tokens == 0 || tokens > kMostTokens) throw std::invalid_argument("tokens are 1 to 512");
  if (calls == 0 || calls > kMostCalls) throw std::invalid_argument("calls are at least 1 and bounded");
  if (trial_of_thread.size() != team.cpus().size())
    throw std::invalid_argument("there is one trial for each thread of the team");
  std::vector<std::size_t> slots;  // of each thread, among those of its trial
  slots.reserve(trial_of_thread.size());
  for (Trial* const trial : trial_of_thread) trial->slots_ = 0;
  for (Trial* const trial : trial_of_thread) slots.push_back(trial->slots_++);
  for (Trial* const trial : trial_of_thread) {
    if (trial->threads_.size() != trial->slots_) trial->threads_ = std::vector<Thread>(trial->slots_);
    trial->tokens_ = tokens;
  }
  const Region prepared = team.execute([&](std::size_t index, ThreadReport& report) {
    try {
      trial_of_thread[index]->prepare(slots[index], tokens);
    } catch (const std::bad_alloc&) {
      report.error = ENOMEM;
    }
  });
  for (const ThreadReport& report : prepared.threads) {
    if (report.error != 0) throw std::bad_alloc();
  }
  Region region = team.execute([&](std::size_t index, ThreadReport& report) {
    Trial& trial = *trial_of_thread[index];
    Thread& thread = trial.threads_[slots[index]];
    // Threads take items in turn: none reads what another has just brought into a shared cache.
    for (std::uint64_t i = 0; i < calls; ++i)
      trial.call(thread, (trial.next_ + i * trial.slots_ + slots[index]) % trial.items_.size(), tokens,
                 thread.outputs[i + 1 == calls ? 1 : 0].as<float>());
    report.bytes = static_cast<std::uint64_t>(static_cast<double>(calls) * trial.bytes_per_item());
  });
  // Once for each of its threads, which makes calls x threads in all.
  for (Trial* const trial : trial_of_thread) trial->next_ = (trial->next_ + calls) % trial->items_.size();
  return region;
}

Comparison Trial::check(std::size_t sampled, std::uint64_t seed) const {
  Comparison found;
  for (const Thread& thread : threads_) {
    ++seed;  // other rows of each thread's output
    const Item& item = items_[thread.last];
    const auto row_of = [&item](std::size_t matrix) {
      return [&packed = item.packed[matrix]](std::size_t row) { return unpack_row(packed, row); };
    };
    Comparison one;
    if (expert_) {
      // The workspace is only read here; a call holds it as one that may be written.
      auto& workspace = const_cast<ExpertWorkspace&>(thread.workspace);
      one = compare_expert(row_of(0), row_of(1), sampled, seed, variant_,
                           {&item.packed[0], &item.packed[1], thread.activations.data(),
                            thread.outputs[1].as<float>(), tokens_, &workspace});
    } else {
      one = compare(row_of(0), sample_rows(rows_, sampled, seed), rows_, thread.activations.data(), tokens_,
                    variant_.activations, thread.outputs[1].as<float>());
    }
    merge(found, one);
  }
  return found;
}

}  // namespace k3gate::gemm
