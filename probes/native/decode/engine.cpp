#include "engine.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>

#include "../gemm/rounding.hpp"

namespace k3gate::decode {
namespace {

std::vector<std::size_t> threads_of_node(const Threads& threads) {
  std::vector<std::size_t> counts;
  for (std::size_t n = 0; n < threads.nodes(); ++n) counts.push_back(threads.of_node(n));
  return counts;
}

void check_errors(const Region& region) {
  for (const ThreadReport& report : region.threads) {
    if (report.error != 0) throw std::bad_alloc();
  }
}

// Of each phase, from one meeting to the next, the thread that worked longest.
void find_critical(const std::vector<std::unique_ptr<Worker>>& workers, Result& result) {
  const std::vector<Part>& parts = workers[0]->marks().parts;
  std::size_t begin = 0;
  double working = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const auto& worker : workers)
      result.thread_seconds[static_cast<std::size_t>(parts[i])] +=
          static_cast<double>(worker->marks().seconds[i]);
    if (parts[i] != Part::kSynchronisation) continue;
    const Worker* slowest = nullptr;
    double most = -1;
    for (const auto& worker : workers) {
      double all = 0;
      for (std::size_t j = begin; j < i; ++j) all += static_cast<double>(worker->marks().seconds[j]);
      if (all > most) {
        most = all;
        slowest = worker.get();
      }
    }
    for (std::size_t j = begin; j < i; ++j)
      result.critical[static_cast<std::size_t>(parts[j])] += static_cast<double>(slowest->marks().seconds[j]);
    working += most;
    begin = i + 1;
  }
  result.critical[static_cast<std::size_t>(Part::kSynchronisation)] =
      std::max(0.0, result.region.seconds - working);
}

}  // namespace

Engine::Engine(const Setup& setup, bool fill)
    : model_(setup),
      work_(model_),
      team_(model_.threads().cpus),
      barrier_(threads_of_node(model_.threads())),
      variants_(setup.path) {
  variants_.of(setup.format, 1);  // throws where there is none
  model_.allocate();
  work_.attach(model_.memory());
  const std::size_t dim = setup.shape.head_dim;
  probe_.state.resize(dim * dim);
  probe_.past.resize(3 * (setup.shape.convolution - 1) * dim);
  weights_.resize(setup.rows() * setup.shape.used);
  workers_.resize(model_.threads().count());
  if (fill) model_.prepare_fill();
  check_errors(team_.execute([&](std::size_t thread, ThreadReport& report) {
    try {
      if (fill) model_.fill(thread);
      workers_[thread] = std::make_unique<Worker>(model_, work_, variants_, thread);
    } catch (const std::bad_alloc&) {
      report.error = ENOMEM;
    }
  }));
  work_.poison();
  reset();
  fill_caches();
  model_.memory().touch();
}

std::uint16_t* Engine::cache_row(std::size_t layer, std::size_t sequence, std::size_t position) const {
  const std::size_t nodes = model_.threads().nodes();
  const std::size_t run = position / kCacheRun;
  return model_.memory().at<std::uint16_t>(model_.layers.at(layer).mla.value().caches[run % nodes]) +
         (sequence * model_.cache_rows + run / nodes * kCacheRun + position % kCacheRun) *
             model_.setup().shape.cached();
}

// What rows of a cache hold: numbers of a deviation near one, as norms leave them.
void Engine::fill_caches() {
  const Setup& setup = model_.setup();
  std::mt19937_64 dice(setup.seed + 17);
  std::normal_distribution<float> normal;
  constexpr std::size_t kStarts = 4096;
  std::vector<std::uint16_t> some(kStarts + setup.shape.cached());
  for (std::uint16_t& value : some) value = gemm::to_bf16(normal(dice));
  for (std::size_t layer = 0; layer < setup.shape.layers; ++layer) {
    if (!model_.layers[layer].mla) continue;
    for (std::size_t sequence = 0; sequence < setup.batch; ++sequence) {
      for (std::size_t position = 0; position < setup.context; ++position) {
        std::memcpy(cache_row(layer, sequence, position), some.data() + dice() % kStarts,
                    setup.shape.cached() * sizeof(std::uint16_t));
      }
    }
  }
}

void Engine::reset() {
  done_ = 0;
  const Setup& setup = model_.setup();
  const std::size_t dim = setup.shape.head_dim;
  for (const Layer& layer : model_.layers) {
    if (!layer.kda) continue;
    for (std::size_t n = 0; n < model_.threads().nodes(); ++n) {
      const std::size_t heads = (model_.first_head[n + 1] - model_.first_head[n]) * setup.batch;
      std::memset(model_.memory().at(layer.kda->states[n]), 0, heads * dim * dim * sizeof(float));
      std::memset(model_.memory().at(layer.kda->pasts[n]), 0,
                  heads * 3 * (setup.shape.convolution - 1) * dim * sizeof(float));
    }
  }
}

Result Engine::run(std::span<const std::int16_t> ids, std::size_t steps, std::span<const std::int32_t> tokens,
                   std::span<const float> rows) {
  const Setup& setup = model_.setup();
  batch_.rows = batch_.sequences = setup.batch;
  batch_.sequence.resize(setup.batch);
  for (std::size_t i = 0; i < setup.batch; ++i) batch_.sequence[i] = i;
  batch_.length.assign(setup.batch, setup.context + done_ + 1);
  return execute(ids, steps, tokens, rows, false);
}

Result Engine::prefill(std::span<const std::int16_t> ids, std::span<const std::int32_t> tokens) {
  const Setup& setup = model_.setup();
  if (!setup.trunk) throw std::invalid_argument("without a trunk there is no prefill");
  if (tokens.empty() || tokens.size() > setup.positions)
    throw std::invalid_argument("a prefill takes 1 to " + std::to_string(setup.positions) + " positions");
  batch_.rows = tokens.size();
  batch_.sequences = 1;
  batch_.sequence.assign(tokens.size(), 0);
  batch_.length.clear();
  for (std::size_t i = 0; i < tokens.size(); ++i) batch_.length.push_back(setup.context + done_ + i + 1);
  return execute(ids, 1, tokens, {}, true);
}

Result Engine::execute(std::span<const std::int16_t> ids, std::size_t steps,
                       std::span<const std::int32_t> tokens, std::span<const float> inputs, bool together) {
  const Setup& setup = model_.setup();
  const Shape& shape = setup.shape;
  if (const std::string missing = model_.missing(); !missing.empty())
    throw std::invalid_argument("not all tensors are loaded: " + missing + " is not");
  if (steps == 0 || steps > 100'000) throw std::invalid_argument("steps are 1 to 100000");
  const std::size_t rows = batch_.rows;
  const std::size_t more = together ? rows : steps;
  const bool cached = std::any_of(model_.layers.begin(), model_.layers.end(),
                                  [](const Layer& layer) { return layer.mla.has_value(); });
  if (cached && done_ + more > setup.room)
    throw std::invalid_argument("caches have room for " + std::to_string(setup.room) +
                                " rows beyond the context: reset, or ask for more");
  const std::size_t all = steps * shape.layers * rows * shape.used;
  if (!ids.empty() && ids.size() != all)
    throw std::invalid_argument("ids are " + std::to_string(all) + " numbers: steps x layers x rows x used");
  if (ids.empty() && !setup.trunk)
    throw std::invalid_argument("without a trunk there is no router: give ids");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t layer = i / (rows * shape.used) % shape.layers;
    if (shape.dense(layer)) continue;
    if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= shape.experts)
      throw std::invalid_argument("expert " + std::to_string(ids[i]) + " is none of the " +
                                  std::to_string(shape.experts) + " that are held");
  }
  std::mt19937_64 dice(setup.seed + 1000 * ++steps_);
  std::vector<std::int32_t> drawn(tokens.begin(), tokens.end());
  if (drawn.empty()) {
    drawn.resize(steps * rows);
    for (std::int32_t& token : drawn) token = static_cast<std::int32_t>(dice() % shape.vocabulary);
  }
  if (drawn.size() != steps * rows) throw std::invalid_argument("tokens are steps x rows numbers");
  for (const std::int32_t token : drawn) {
    if (setup.trunk && (token < 0 || static_cast<std::size_t>(token) >= shape.vocabulary))
      throw std::invalid_argument("token " + std::to_string(token) + " is none of the vocabulary");
  }
  std::vector<float> given(inputs.begin(), inputs.end());
  if (given.empty() && !setup.trunk) {
    given.resize(rows * shape.width);
    std::normal_distribution<float> normal;
    for (float& value : given) value = normal(dice);
  }
  if (!setup.trunk && given.size() != rows * shape.width)
    throw std::invalid_argument("rows are batch x width numbers");

  Result result;
  result.ids.assign(all, -1);
  std::size_t probed = shape.layers;
  for (std::size_t i = 0; i < shape.layers; ++i) {
    if (model_.layers[i].kda) probed = i;
  }
  probe_.head = steps_ % shape.heads;
  probe_.row = rows - 1;
  work_.poison();
  const Run run{&model_,
                &work_,
                &batch_,
                &barrier_,
                &probe_,
                ids.empty() ? nullptr : ids.data(),
                result.ids.data(),
                weights_.data(),
                drawn.data(),
                given.data(),
                steps,
                lapse_,
                probed};
  for (const auto& worker : workers_) worker->prepare(run);
  result.region = team_.execute([this](std::size_t thread, ThreadReport&) { workers_[thread]->steps(); });
  done_ += more;
  for (std::size_t& length : batch_.length) length += steps - 1;  // as the last step saw them
  const std::size_t last = all / steps;
  ids_.assign(result.ids.end() - static_cast<std::ptrdiff_t>(last), result.ids.end());

  double before = workers_[0]->marks().start;
  for (const double end : workers_[0]->marks().step_ends) {
    result.step_seconds.push_back(end - before);
    before = end;
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Counters& counters = workers_[i]->counters();
    result.counters.add(counters);
    double bytes = 0;
    for (std::size_t part = 0; part < kParts; ++part) bytes += counters.read[part];
    result.region.threads[i].bytes = static_cast<std::uint64_t>(bytes);
  }
  find_critical(workers_, result);
  if (setup.trunk) {
    result.logits.resize(rows * shape.vocabulary);
    for (std::size_t n = 0; n < model_.threads().nodes(); ++n) {
      const std::size_t begin = model_.head.first_row_of(model_.threads().first[n]);
      const std::size_t end =
          std::min(model_.head.first_row_of(model_.threads().first[n + 1]), shape.vocabulary);
      for (std::size_t row = 0; row < rows && begin < end; ++row)
        std::copy(work_.logits.row(n, row) + begin, work_.logits.row(n, row) + end,
                  result.logits.begin() + static_cast<std::ptrdiff_t>(row * shape.vocabulary + begin));
    }
  }
  const std::size_t width = work_.hidden.stride;
  result.hidden.assign(work_.hidden.row(0, 0), work_.hidden.row(0, 0) + rows * width);
  return result;
}

}  // namespace k3gate::decode
