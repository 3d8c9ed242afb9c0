// MLA, absorbed: scores of all heads against one cache, whose rows lie in turns on the nodes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "step.hpp"

namespace k3gate::decode {
namespace {

constexpr std::size_t kChunk = 128;  // rows of a cache that are worth a thread's while
constexpr std::size_t kLeastHeads = 4;

std::size_t share(std::size_t all, std::size_t part, std::size_t parts) { return all * part / parts; }

}  // namespace

// How many of the first `length` rows of a cache lie on a node.
std::size_t Worker::node_rows(std::size_t length, std::size_t node) const {
  const std::size_t nodes = model_.threads().nodes();
  const std::size_t runs = length / kCacheRun;
  const std::size_t whole = runs / nodes + (runs % nodes > node ? 1 : 0);
  return whole * kCacheRun + (runs % nodes == node ? length % kCacheRun : 0);
}

// Into how many pieces the work of one row on a node is cut: along the cache first, then by heads.
Worker::Chunks Worker::chunks_of(std::size_t rows, std::size_t node) const {
  if (rows == 0) return {};
  const std::size_t heads = model_.setup().shape.heads;
  const std::size_t wanted = (model_.threads().of_node(node) + rows_ - 1) / rows_;
  Chunks found;
  found.chunks = std::clamp<std::size_t>((rows + kChunk - 1) / kChunk, 1,
                                         std::max<std::size_t>(1, model_.threads().of_node(node) / rows_));
  const std::size_t groups = std::clamp<std::size_t>((wanted + found.chunks - 1) / found.chunks, 1,
                                                     (heads + kLeastHeads - 1) / kLeastHeads);
  found.heads = (heads + groups - 1) / groups;
  found.groups = (heads + found.heads - 1) / found.heads;
  return found;
}

void Worker::mla(std::size_t layer, std::size_t number) {
  const Mla& mla = *model_.layers[layer].mla;
  multiply(mla.proj, work_.mla_x, work_.mla_proj, [](const Shard&) {});
  mark(Part::kAttention);
  meet();
  mla_append(mla, number);
  mark(Part::kCore);
  meet();
  multiply(mla.q_b, work_.mla_low, work_.mla_q, [](const Shard&) {});
  mark(Part::kAttention);
  meet();
  mla_absorb(mla);
  mark(Part::kCore);
  meet();
  mla_attend(mla, number);
  mark(Part::kCore);
  meet();
  mla_values(mla, number);
  mark(Part::kCore);
  meet();
  multiply(mla.out, work_.mla_o, work_.mla_y, [&](const Shard& shard) {
    add_to_sum(shard, work_.mla_y, layer, layer % model_.setup().shape.block_layers == 0);
  });
  mark(Part::kAttention);
}

// Norms of what the first products gave; a row more in each cache.
void Worker::mla_append(const Mla& mla, std::size_t number) {
  const Shape& shape = model_.setup().shape;
  const std::size_t nodes = model_.threads().nodes();
  float* const values = floats_.data();
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!is_home(row)) continue;
    fetch(mla.proj, work_.mla_proj, row, mla.proj.order().row(0, 0), shape.query_rank, values);
    const auto factor = [&](std::size_t count) {
      return 1 / std::sqrt(vectors_.dot(values, values, count) / static_cast<float>(count) + kEpsilon);
    };
    vectors_.normalise(values, mla.query_norm.at[node_], factor(shape.query_rank), shape.query_rank,
                       work_.mla_low.row(node_, row));
    push(work_.mla_low, row, 0, shape.query_rank);
    fetch(mla.proj, work_.mla_proj, row, mla.proj.order().row(1, 0), shape.cached(), values);
    const std::size_t position = run_.batch->length[row] + number - 1;
    const std::size_t run = position / kCacheRun;
    auto* const cache = model_.memory().at<std::uint16_t>(mla.caches[run % nodes]);
    std::uint16_t* const to = cache + (run_.batch->sequence[row] * model_.cache_rows +
                                       run / nodes * kCacheRun + position % kCacheRun) *
                                          shape.cached();
    vectors_.normalise(values, mla.cache_norm.at[node_], factor(shape.cache_rank), shape.cache_rank, to);
    vectors_.to_bf16(values + shape.cache_rank, shape.rest, to + shape.cache_rank);
    const double size = 2 * static_cast<double>(shape.cached());
    counters_.written[static_cast<std::size_t>(Part::kCore)] += size;
    if (run % nodes != node_) counters_.activations += 2 * shape.cached();
  }
}

// Queries as they meet the cache: W_k^T q of each head.
void Worker::mla_absorb(const Mla& mla) {
  const Shape& shape = model_.setup().shape;
  for (const Shard& shard : mla.k_b.shards_of(thread_)) {
    const std::size_t head = shard.first_row() / shape.cache_rank;
    for (std::size_t row = 0; row < rows_; ++row) {
      fetch(mla.q_b, work_.mla_q, row, head * shape.key(), shape.head_dim, floats_.data());
      vectors_.to_bf16(floats_.data(), shape.head_dim, gathered_.data() + row * shape.head_dim);
      std::memcpy(work_.mla_query.row(node_, row) + head * shape.head_dim,
                  gathered_.data() + row * shape.head_dim, shape.head_dim * sizeof(std::uint16_t));
    }
    multiply_shard(shard, mla.k_b, gathered_.data(), rows_, work_.mla_absorbed.at[node_] + shard.first_row(),
                   work_.mla_absorbed.stride);
  }
}

void Worker::mla_attend(const Mla& mla, std::size_t number) {
  const Shape& shape = model_.setup().shape;
  const std::size_t threads = model_.threads().of_node(node_);
  const std::size_t size = shape.cache_rank + 2;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.key()));
  std::size_t units = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    const Chunks cut = chunks_of(node_rows(run_.batch->length[row] + number, node_), node_);
    units += cut.chunks * cut.groups;
  }
  const std::size_t begin = share(units, rank_, threads);
  const std::size_t end = share(units, rank_ + 1, threads);
  std::size_t unit = 0;
  std::size_t chunk_before = 0;  // in the node's list of partial sums
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::size_t rows = node_rows(run_.batch->length[row] + number, node_);
    const Chunks cut = chunks_of(rows, node_);
    for (std::size_t i = 0; i < cut.chunks * cut.groups; ++i, ++unit) {
      if (unit < begin || unit >= end) continue;
      const std::size_t chunk = i / cut.groups;
      const std::size_t first_head = i % cut.groups * cut.heads;
      const std::size_t heads = std::min(cut.heads, shape.heads - first_head);
      const std::size_t first_row = share(rows, chunk, cut.chunks);
      const std::size_t count = share(rows, chunk + 1, cut.chunks) - first_row;
      for (std::size_t h = 0; h < heads; ++h) {
        float* const query = queries_.data() + h * shape.cached();
        fetch(mla.k_b, work_.mla_absorbed, row, (first_head + h) * shape.cache_rank, shape.cache_rank, query);
        fetch(mla.q_b, work_.mla_q, row, (first_head + h) * shape.key() + shape.head_dim, shape.rest,
              query + shape.cache_rank);
        vectors_.scale(query, scale, shape.cached(), query);
      }
      // Of each chunk: sums of all heads, then the largest scores, then the sums of weights.
      float* const partial = work_.mla_partial.row(node_, chunk_before + chunk);
      vectors_.attend({queries_.data(), heads, shape.cache_rank, shape.cached(),
                       model_.memory().at<std::uint16_t>(mla.caches[node_]) +
                           (run_.batch->sequence[row] * model_.cache_rows + first_row) * shape.cached(),
                       count, cache_block_.data(), queries_.data() + shape.heads * shape.cached(),
                       partial + shape.heads * shape.cache_rank + first_head,
                       partial + shape.heads * (size - 1) + first_head,
                       partial + first_head * shape.cache_rank});
      const auto part = static_cast<std::size_t>(Part::kCore);
      // What another thread reads of the same chunk for other heads is not counted again.
      if (first_head == 0) counters_.read[part] += 2 * static_cast<double>(count * shape.cached());
      counters_.flops[part] += 2 * static_cast<double>(count * heads * (shape.cached() + shape.cache_rank));
    }
    chunk_before += cut.chunks;
  }
}

// Joins what chunks and nodes gave, and takes it through W_v and the gate.
void Worker::mla_values(const Mla& mla, std::size_t number) {
  const Shape& shape = model_.setup().shape;
  const std::size_t rank = shape.cache_rank;
  const std::size_t nodes = model_.threads().nodes();
  for (const Shard& shard : mla.v_b.shards_of(thread_)) {
    const std::size_t head = shard.first_row() / shape.head_dim;
    std::size_t before[32] = {};
    for (std::size_t row = 0; row < rows_; ++row) {
      float* const joined = floats_.data();
      std::fill_n(joined, rank, 0.0F);
      float most = -3e38F;
      float sum = 0;
      for (std::size_t n = 0; n < nodes; ++n) {
        const std::size_t chunks = chunks_of(node_rows(run_.batch->length[row] + number, n), n).chunks;
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
          const float* const partial = work_.mla_partial.row(n, before[n] + chunk);
          const float largest = partial[shape.heads * rank + head];
          const float weight = partial[shape.heads * (rank + 1) + head];
          if (n != node_) counters_.activations += (rank + 2) * sizeof(float);
          if (largest > most) {
            const float factor = std::exp(most - largest);
            vectors_.scale(joined, factor, rank, joined);
            sum *= factor;
            most = largest;
          }
          const float factor = std::exp(largest - most);
          vectors_.add(partial + head * rank, factor, rank, joined);
          sum += factor * weight;
        }
        before[n] += chunks;
      }
      vectors_.scale(joined, 1 / sum, rank, joined);
      vectors_.to_bf16(joined, rank, gathered_.data() + row * rank);
      std::memcpy(work_.mla_context.row(node_, row) + head * rank, gathered_.data() + row * rank,
                  rank * sizeof(std::uint16_t));
    }
    float* const output = queries_.data();  // of one row at a time
    const gemm::Variant& variant = variants_.of(mla.v_b.format(), rows_);
    variant.run({&shard.packed, gathered_.data(), scratch_.data(), rows_, &workspace_});
    weigh(mla.v_b, rows_, shard.rows());
    for (std::size_t row = 0; row < rows_; ++row) {
      fetch(mla.proj, work_.mla_proj, row, mla.proj.order().row(2, 0) + shard.first_row(), shard.rows(),
            output);
      vectors_.gate(scratch_.data() + row * shard.rows(), ones_.data(), 1.0F, output, shard.rows(),
                    work_.mla_o.row(node_, row) + shard.first_row());
      push(work_.mla_o, row, shard.first_row(), shard.rows());
    }
  }
}

}  // namespace k3gate::decode
