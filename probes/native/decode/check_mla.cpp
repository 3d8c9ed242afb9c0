#include <algorithm>
#include <cmath>

#include "../gemm/rounding.hpp"
#include "checker.hpp"

namespace k3gate::decode {

void Checker::check_mla(const Mla& mla, const Mla& truth, std::size_t layer) {
  product("MLA's first products", mla.proj, truth.proj, work_.mla_x.at[0], work_.mla_proj);
  const std::vector<float> proj = outputs(mla.proj, work_.mla_proj);
  halves("MLA's query", work_.mla_low, shape_.query_rank, [&](std::size_t row) {
    return normalised(proj.data() + row * mla.proj.rows() + mla.proj.order().row(0, 0), shape_.query_rank,
                      truth.query_norm);
  });
  gemm::Comparison cached;
  for (std::size_t row = 0; row < rows_; ++row) {
    const float* const from = proj.data() + row * mla.proj.rows() + mla.proj.order().row(1, 0);
    Doubles wanted = normalised(from, shape_.cache_rank, truth.cache_norm);
    wanted.insert(wanted.end(), from + shape_.cache_rank, from + shape_.cached());
    const std::uint16_t* const cache =
        engine_.cache_row(layer, engine_.batch().sequence[row], engine_.batch().length[row] - 1);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      see(cached, bf16(cache[i]), wanted[i], std::fabs(wanted[i]) * (kHalfStep + kFloats) + 1e-30, i, row);
  }
  add("rows of MLA's caches", cached);
  product("MLA's second product", mla.q_b, truth.q_b, work_.mla_low.at[0], work_.mla_q);
  const std::vector<float> queries = outputs(mla.q_b, work_.mla_q);
  const std::vector<float> absorbed = outputs(mla.k_b, work_.mla_absorbed);
  for (const std::size_t head :
       gemm::sample_rows(shape_.heads, std::max<std::size_t>(1, sampled_ / 4), dice_()))
    check_head_of_mla(mla, truth, layer, head, proj, queries, absorbed);
  product("MLA's last product", mla.out, truth.out, work_.mla_o.at[0], work_.mla_y);
}

void Checker::check_head_of_mla(const Mla& mla, const Mla& truth, std::size_t layer, std::size_t head,
                                const std::vector<float>& proj, const std::vector<float>& queries,
                                const std::vector<float>& absorbed) {
  const std::size_t rank = shape_.cache_rank;
  const std::size_t dim = shape_.head_dim;
  gemm::Comparison keys;
  gemm::Comparison contexts;
  gemm::Comparison values;
  const double scale = 1 / std::sqrt(static_cast<double>(shape_.key()));
  for (std::size_t row = 0; row < rows_; ++row) {
    const float* const query = queries.data() + row * mla.q_b.rows() + head * shape_.key();
    std::vector<std::uint16_t> rounded(dim);
    for (std::size_t i = 0; i < dim; ++i) rounded[i] = gemm::to_bf16(query[i]);
    const float* const meets = absorbed.data() + row * mla.k_b.rows() + head * rank;
    const auto kind = engine_.variant(mla.k_b.format(), rows_).activations;
    for (const std::size_t r : gemm::sample_rows(rank, sampled_, dice_())) {
      const gemm::Expected expected =
          gemm::expect_row(truth.k_b.row(head * rank + r), rounded.data(), 1, kind).front();
      see(keys, static_cast<double>(meets[r]), expected.value, expected.bound, r, row);
    }
    const std::size_t length = engine_.batch().length[row];
    const std::size_t sequence = engine_.batch().sequence[row];
    Doubles scores(length);
    double most = -HUGE_VAL;
    double terms = 0;
    for (std::size_t at = 0; at < length; ++at) {
      const std::uint16_t* const cache = engine_.cache_row(layer, sequence, at);
      double sum = 0;
      double size = 0;
      for (std::size_t r = 0; r < shape_.cached(); ++r) {
        const double with = static_cast<double>(r < rank ? meets[r] : query[dim + r - rank]);
        sum += with * bf16(cache[r]);
        size += std::fabs(with * bf16(cache[r]));
      }
      scores[at] = sum * scale;
      most = std::max(most, scores[at]);
      terms = std::max(terms, size * scale);
    }
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - most);
    Doubles wanted(rank);
    Doubles sizes(rank);
    for (std::size_t at = 0; at < length; ++at) {
      const std::uint16_t* const cache = engine_.cache_row(layer, sequence, at);
      for (std::size_t r = 0; r < rank; ++r) {
        wanted[r] += scores[at] / sum * bf16(cache[r]);
        sizes[r] += scores[at] / sum * std::fabs(bf16(cache[r]));
      }
    }
    // A head's shard of W_v may be cut among threads, which lie on one node each.
    const Shard* shard = nullptr;
    std::size_t node = 0;
    for (std::size_t thread = 0; thread < own_.threads().count() && shard == nullptr; ++thread) {
      for (const Shard& one : mla.v_b.shards_of(thread)) {
        if (one.first_row() > head * dim || one.first_row() + one.rows() <= head * dim) continue;
        shard = &one;
        node = own_.threads().node[thread];
      }
    }
    const std::uint16_t* const context = work_.mla_context.row(node, row) + head * rank;
    for (std::size_t r = 0; r < rank; ++r)
      see(contexts, bf16(context[r]), wanted[r],
          std::fabs(wanted[r]) * kHalfStep + sizes[r] * (4 * kFloats + 4 * 0x1p-20 * terms) + 1e-30, r, row);
    const auto value_kind = engine_.variant(mla.v_b.format(), rows_).activations;
    const std::size_t end = std::min(shard->first_row() + shard->rows(), (head + 1) * dim);
    for (std::size_t i = head * dim; i < end; ++i) {
      const gemm::Expected expected = gemm::expect_row(truth.v_b.row(i), context, 1, value_kind).front();
      const double gate =
          sigmoid(static_cast<double>(proj[row * mla.proj.rows() + mla.proj.order().row(2, i)]));
      for (const auto* at : work_.mla_o.at)
        see(values, bf16(at[row * work_.mla_o.stride + i]), expected.value * gate,
            expected.bound * gate + std::fabs(expected.value * gate) * (kHalfStep + kFloats) + 1e-30, i, row);
    }
  }
  add("queries absorbed by a head of MLA", keys);
  add("what a head of MLA finds in its cache", contexts);
  add("the output of a head of MLA", values);
}

}  // namespace k3gate::decode
