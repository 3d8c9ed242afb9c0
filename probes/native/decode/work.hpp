// What lies between the products of a step: on each node a copy or a part of each. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.hpp"

namespace k3gate::decode {

// Rows of numbers, as many on each node; what a row holds there is up to who writes it.
template <class T>
struct Rows {
  std::size_t count = 0;
  std::size_t stride = 0;
  std::vector<Place> places;
  std::vector<T*> at;

  bool present() const { return !places.empty(); }
  T* row(std::size_t node, std::size_t index) const { return at[node] + index * stride; }
};

struct Work {
  // Plans in the model's memory; before it is allocated.
  explicit Work(Model& model);
  void attach(const Memory& memory);
  // Every number becomes NaN, so that one that is never written is found.
  void poison() const;

  using Floats = Rows<float>;
  using Halves = Rows<std::uint16_t>;  // BF16

  // What products take, the same on each node.
  Halves kda_x, mla_x, dense_x, moe_x, head_x;
  Halves kda_low, kda_o;
  Halves mla_low, mla_query, mla_context, mla_o;
  Halves dense_hidden, shared_hidden;
  Halves z;              // of routed experts
  Halves expert_hidden;  // a row for each choice, in the order of the group
  Halves normed;
  // What they give, where the thread is that computed it.
  Floats kda_proj, kda_given, kda_y;
  Floats mla_proj, mla_q, mla_absorbed, mla_partial, mla_y;
  Floats dense_gate_up, dense_y;
  Floats scores, latent, shared_gate_up, shared_y, up_y;
  Floats expert_gate_up, expert_out, sums;
  Floats logits;
  // Of each row on the node of its home: what AttnRes mixes, the running sum behind the inputs of the blocks.
  Floats residual;
  Floats hidden;  // on the first node

 private:
  template <class Do>
  void each(const Do& act);

  std::size_t rows_;
};

}  // namespace k3gate::decode
