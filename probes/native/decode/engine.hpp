// A miniature Kimi K3 in memory that decodes, every thread running the same phases. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../gemm/gemm.hpp"
#include "../team.hpp"
#include "barrier.hpp"
#include "model.hpp"
#include "step.hpp"
#include "work.hpp"

namespace k3gate::decode {

struct Result {
  Region region;
  std::vector<double> step_seconds;
  double critical[kParts] = {};
  double thread_seconds[kParts] = {};
  Counters counters;
  std::vector<std::int16_t> ids;  // [steps, layers, rows, used]
  std::vector<float> logits;      // [rows, vocabulary]
  std::vector<float> hidden;
};

class Engine {
 public:
  // Throws std::system_error where there is no memory or no such CPU, std::invalid_argument for a setup that
  // can not be.
  Engine(const Setup& setup, bool fill);

  Model& model() { return model_; }
  const Model& model() const { return model_; }
  const Work& work() const { return work_; }
  Team& team() { return team_; }
  const Probe& probe() const { return probe_; }
  const Batch& batch() const { return batch_; }
  // The path that is used for so many rows.
  const gemm::Variant& variant(gemm::Format format, std::size_t rows) const {
    return variants_.of(format, rows);
  }
  std::span<const std::int16_t> last_ids() const { return ids_; }  // [layers, rows, used]
  std::span<const float> last_weights() const {
    return weights_;
  }  // of the last layer with experts: [rows, used]
  void set_lapse(Lapse lapse) { lapse_ = lapse; }

  // `ids` empty: the router chooses. `tokens` [steps, batch]. `rows` [batch, width]: of no trunk.
  Result run(std::span<const std::int16_t> ids, std::size_t steps, std::span<const std::int32_t> tokens,
             std::span<const float> rows);
  Result prefill(std::span<const std::int16_t> ids, std::span<const std::int32_t> tokens);
  void reset();
  // BF16 of the cache of a layer of MLA: where a row of a sequence lies.
  std::uint16_t* cache_row(std::size_t layer, std::size_t sequence, std::size_t position) const;

 private:
  Result execute(std::span<const std::int16_t> ids, std::size_t steps, std::span<const std::int32_t> tokens,
                 std::span<const float> rows, bool together);
  void fill_caches();

  Model model_;
  Work work_;
  Team team_;
  Barrier barrier_;
  Variants variants_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Lapse lapse_ = Lapse::kNone;
  std::size_t done_ = 0;  // rows of each sequence since the last reset
  std::size_t steps_ = 0;
  Batch batch_;
  std::vector<std::int16_t> ids_;  // of the last step
  std::vector<float> weights_;
  Probe probe_;
};

}  // namespace k3gate::decode
