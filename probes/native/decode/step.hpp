// What each thread does in a step. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../gemm/gemm.hpp"
#include "barrier.hpp"
#include "model.hpp"
#include "vectors.hpp"
#include "work.hpp"

namespace k3gate::decode {

// What one thread did in a run.
struct Counters {
  double read[kParts] = {};  // bytes: of weights what the format has, states, caches
  double written[kParts] = {};
  double flops[kParts] = {};
  std::uint64_t activations = 0;  // bytes copied between nodes
  std::uint64_t experts_in = 0;
  std::uint64_t experts_out = 0;
  std::uint64_t choices = 0;  // of the router, where others were forced
  std::uint64_t agreed = 0;
  std::uint64_t routed = 0;  // rows and layers
  std::uint64_t tied = 0;

  void add(const Counters& other);
};

// A mistake to plant that no wrong weight is.
enum class Lapse { kNone, kLostRow };

// What happens to the rows of one step: rows of one sequence follow one another.
struct Batch {
  std::size_t rows = 0;
  std::size_t sequences = 0;
  std::vector<std::size_t> sequence;  // of each row
  std::vector<std::size_t> length;    // of the cache that a row sees, itself in it
};

// A head of the last layer of KDA, before and after the last step; for who computes it again.
struct Probe {
  std::size_t head = 0;
  std::size_t row = 0;
  std::vector<float> state;
  std::vector<float> past;
};

// Of each format the variants that a path allows: for few rows, and for many.
class Variants {
 public:
  // Throws std::invalid_argument where the path is none of this CPU's.
  explicit Variants(const std::string& path);
  const gemm::Variant& of(gemm::Format format, std::size_t rows) const;
  gemm::Path path() const { return path_; }

 private:
  gemm::Path path_;
  std::vector<const gemm::Variant*> allowed_;
};

// What all threads of a run share.
struct Run {
  const Model* model;
  const Work* work;
  const Batch* batch;
  Barrier* barrier;
  Probe* probe;
  const std::int16_t* forced;  // [steps, layers, rows, used], or nullptr
  std::int16_t* ids;           // the same, what is used
  float* weights;              // [rows, used] of one layer
  const std::int32_t* tokens;  // [steps, rows]
  const float* inputs;         // [rows, width], where there is no trunk
  std::size_t steps;
  Lapse lapse;
  std::size_t probed_layer;
};

// Seconds of each piece of work between two marks, in the order in which all threads do them.
struct Marks {
  std::vector<float> seconds;  // [steps x marks of a step]
  std::vector<Part> parts;
  std::vector<double> step_ends;
  double start = 0;
};

class Worker {
 public:
  Worker(const Model& model, const Work& work, const Variants& variants, std::size_t thread);
  // Before a region: nothing is allocated within.
  void prepare(const Run& run);
  // The whole of a run.
  void steps();

  const Counters& counters() const { return counters_; }
  const Marks& marks() const { return marks_; }

 private:
  using Floats = Work::Floats;
  using Halves = Work::Halves;
  struct Active {
    std::size_t expert;
    std::size_t first;  // slot
    std::size_t count;
  };

  void step(std::size_t number);
  void mark(Part part);
  void meet();
  bool is_home(std::size_t row) const;
  std::size_t home_node(std::size_t row) const;
  void weigh(const Matrix& matrix, std::size_t rows, std::size_t weight_rows);
  // This thread's share of a product; then(shard) after each shard.
  template <class Then>
  void multiply(const Matrix& matrix, const Halves& input, const Floats& output, const Then& then) {
    for (const Shard& shard : matrix.shards_of(thread_)) {
      multiply_shard(shard, matrix, input.at[node_], rows_, output.at[node_] + shard.first_row(),
                     output.stride);
      then(shard);
    }
  }
  void multiply_shard(const Shard& shard, const Matrix& matrix, const std::uint16_t* input, std::size_t rows,
                      float* to, std::size_t stride);
  void fetch(const Matrix& matrix, const Floats& from, std::size_t row, std::size_t first, std::size_t count,
             float* to);
  // What this thread wrote on its node goes to the others.
  template <class T>
  void push(const Rows<T>& rows, std::size_t row, std::size_t first, std::size_t count) {
    for (std::size_t n = 0; n < rows.at.size(); ++n) {
      if (n == node_) continue;
      std::memcpy(rows.row(n, row) + first, rows.row(node_, row) + first, count * sizeof(T));
      counters_.activations += count * sizeof(T);
    }
  }
  void add_to_sum(const Shard& shard, const Floats& output, std::size_t layer, bool begins);
  void activate(const Shard& shard, const Floats& gate_up, const Halves& hidden);

  std::size_t blocks_at(std::size_t layer) const { return layer / model_.setup().shape.block_layers + 1; }
  void embed(std::size_t number);
  void mix(const Mix& mix, const Vec& norm, std::size_t vectors, const Halves& to, bool last);
  void kda(std::size_t layer);
  void kda_head(const Kda& kda, std::size_t layer, std::size_t head, std::size_t sequence);
  void mla(std::size_t layer, std::size_t number);
  void mla_append(const Mla& mla, std::size_t number);
  void mla_absorb(const Mla& mla);
  void mla_attend(const Mla& mla, std::size_t number);
  void mla_values(const Mla& mla, std::size_t number);
  void dense(std::size_t layer);
  void moe(std::size_t layer, std::size_t number);
  void route(const Moe& moe, std::size_t row, const std::int16_t* forced, std::int16_t* ids);
  void plan_experts(const std::int16_t* ids);
  void bring_rows();
  void experts(const Moe& moe);
  void experts_up(const Moe& moe);
  void experts_down(const Moe& moe);
  void experts_sum();
  void finish_experts(const Moe& moe);
  void finish();

  struct Chunks {
    std::size_t chunks = 0;
    std::size_t groups = 0;
    std::size_t heads = 0;  // of a group, but of the last one
  };
  std::size_t node_rows(std::size_t length, std::size_t node) const;
  Chunks chunks_of(std::size_t rows, std::size_t node) const;

  const Model& model_;
  const Work& work_;
  const Variants& variants_;
  const Vectors& vectors_;
  const std::size_t thread_;
  const std::size_t node_;
  const std::size_t rank_;   // among the node's threads
  const std::size_t group_;  // that this thread executes experts for
  const std::size_t group_rank_;
  const std::size_t group_size_;
  Run run_{};
  std::size_t rows_ = 0;
  gemm::Workspace workspace_;
  std::vector<float> scratch_;           // a shard's outputs
  std::vector<std::uint16_t> gathered_;  // rows of one expert
  std::vector<float> floats_;            // of a head, or of a row
  std::vector<float> cache_block_;
  std::vector<float> queries_;
  std::vector<float> ones_;
  std::vector<std::size_t> offsets_;
  std::vector<std::uint32_t> counts_;  // of each expert
  std::vector<std::uint32_t> slots_;   // the first of each expert; then the next
  std::vector<Active> active_;         // of the own group
  std::vector<std::uint32_t> row_of_slot_;
  std::vector<std::uint8_t> group_of_expert_;
  std::vector<std::uint32_t> groups_of_row_;   // a bit for each group that executes for it
  std::vector<std::uint32_t> slot_of_choice_;  // [rows, used]; ~0 where another group executes
  Counters counters_;
  Marks marks_;
  double last_ = 0;
};

}  // namespace k3gate::decode
