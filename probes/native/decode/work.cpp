#include "work.hpp"

#include <algorithm>
#include <cstring>

namespace k3gate::decode {

template <class Do>
void Work::each(const Do& act) {
  for (Halves* one : {&kda_x, &mla_x, &dense_x, &moe_x, &head_x, &kda_low, &kda_o, &mla_low, &mla_query,
                      &mla_context, &mla_o, &dense_hidden, &shared_hidden, &z, &expert_hidden, &normed})
    act(*one);
  for (Floats* one :
       {&kda_proj, &kda_given,      &kda_y,      &mla_proj, &mla_q,  &mla_absorbed,   &mla_partial,
        &mla_y,    &dense_gate_up,  &dense_y,    &scores,   &latent, &shared_gate_up, &shared_y,
        &up_y,     &expert_gate_up, &expert_out, &sums,     &logits, &residual,       &hidden})
    act(*one);
}

Work::Work(Model& model) : rows_(model.setup().rows()) {
  const Shape& shape = model.setup().shape;
  Memory& memory = model.memory();
  const std::size_t nodes = memory.nodes();
  const auto take = [&](auto& rows, std::size_t stride, std::size_t count) {
    rows.count = count;
    rows.stride = stride;
    for (std::size_t n = 0; n < nodes; ++n)
      rows.places.push_back(memory.take(n, Part::kWork, count * stride * sizeof(*rows.at[0])));
  };
  const auto find = [&](const auto& has) {
    const auto found = std::find_if(model.layers.begin(), model.layers.end(), has);
    return found == model.layers.end() ? nullptr : &*found;
  };
  if (const Layer* layer = find([](const Layer& one) { return one.kda.has_value(); })) {
    take(kda_x, shape.hidden, rows_);
    take(kda_proj, layer->kda->proj.rows(), rows_);
    take(kda_low, shape.decay_rank, rows_);
    take(kda_given, layer->kda->f_b.rows(), rows_);
    take(kda_o, shape.across(), rows_);
    take(kda_y, shape.hidden, rows_);
  }
  if (const Layer* layer = find([](const Layer& one) { return one.mla.has_value(); })) {
    take(mla_x, shape.hidden, rows_);
    take(mla_proj, layer->mla->proj.rows(), rows_);
    take(mla_low, shape.query_rank, rows_);
    take(mla_q, layer->mla->q_b.rows(), rows_);
    take(mla_query, shape.across(), rows_);
    take(mla_absorbed, layer->mla->k_b.rows(), rows_);
    std::size_t most = 0;
    for (std::size_t n = 0; n < nodes; ++n) most = std::max(most, model.threads().of_node(n));
    take(mla_partial, shape.heads * (shape.cache_rank + 2), std::max(rows_, most));
    take(mla_context, shape.heads * shape.cache_rank, rows_);
    take(mla_o, shape.across(), rows_);
    take(mla_y, shape.hidden, rows_);
  }
  if (find([](const Layer& one) { return one.dense.has_value(); }) != nullptr) {
    take(dense_x, shape.hidden, rows_);
    take(dense_gate_up, 2 * shape.dense_inner, rows_);
    take(dense_hidden, shape.dense_inner, rows_);
    take(dense_y, shape.hidden, rows_);
  }
  const Layer* const moe = find([](const Layer& one) { return one.moe.has_value(); });
  if (moe != nullptr) {
    const std::size_t choices = rows_ * shape.used;
    take(z, shape.width, rows_);
    take(expert_gate_up, 2 * shape.inner, choices);
    take(expert_hidden, shape.inner, choices);
    take(expert_out, shape.width, choices);
    take(sums, shape.width, rows_);
    if (model.setup().trunk) {
      take(moe_x, shape.hidden, rows_);
      take(scores, moe->moe->router.rows(), rows_);
      take(latent, shape.width, rows_);
      take(normed, shape.width, rows_);
      take(up_y, shape.hidden, rows_);
      if (shape.shared > 0) {
        take(shared_gate_up, 2 * shape.shared * shape.inner, rows_);
        take(shared_hidden, shape.shared * shape.inner, rows_);
        take(shared_y, shape.hidden, rows_);
      }
    }
  }
  if (model.setup().trunk) {
    take(head_x, shape.hidden, rows_);
    take(logits, model.head.rows(), rows_);
    const std::size_t blocks = (shape.layers + shape.block_layers - 1) / shape.block_layers;
    take(residual, (blocks + 1) * shape.hidden, rows_);
  }
  take(hidden, model.setup().trunk ? shape.hidden : shape.width, rows_);
}

void Work::attach(const Memory& memory) {
  each([&memory](auto& rows) {
    using T = std::remove_reference_t<decltype(*rows.at[0])>;
    for (const Place& place : rows.places) rows.at.push_back(memory.at<T>(place));
  });
}

void Work::poison() const {
  const_cast<Work*>(this)->each([](auto& rows) {
    for (auto* at : rows.at) std::memset(at, 0xff, rows.count * rows.stride * sizeof(*at));
  });
}

}  // namespace k3gate::decode
