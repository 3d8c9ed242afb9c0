#include "reference.hpp"

#include <algorithm>
#include <cmath>

#include "../gemm/rounding.hpp"
#include "../gemm/situ.hpp"

namespace k3gate::decode {
namespace {

using Doubles = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Doubles rms_norm(const Doubles& x, const Doubles& weight) {
  const double factor =
      1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + static_cast<double>(kEpsilon));
  Doubles all(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) all[i] = weight[i] * x[i] * factor;
  return all;
}

void add(Doubles& to, const Doubles& from, double factor = 1) {
  if (to.empty()) to.assign(from.size(), 0.0);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}

double bf16(double x) { return static_cast<double>(gemm::from_bf16(gemm::to_bf16(static_cast<float>(x)))); }

void softmax(Doubles& scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (double& score : scores) score /= sum;
}

}  // namespace

const std::vector<Doubles>& Numbers::matrix(const std::string& name) {
  std::vector<Doubles>& rows = matrices_[name];
  if (rows.empty()) {
    const gemm::Source source = tensors_.at(name).matrix.view();
    for (std::size_t row = 0; row < source.rows; ++row) rows.push_back(gemm::source_row(source, row));
  }
  return rows;
}

const Doubles& Numbers::vec(const std::string& name) {
  Doubles& values = vecs_[name];
  if (values.empty()) {
    const std::vector<float>& given = tensors_.at(name).values;
    values.assign(given.begin(), given.end());
  }
  return values;
}

Doubles Reference::rounded(const Doubles& x, gemm::Activations kind) const {
  if (!roundings_.any) return x;
  Doubles all(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) all[i] = bf16(x[i]);
  if (kind == gemm::Activations::kBf16) return all;
  const std::size_t together = kind == gemm::Activations::kInt8 ? x.size() : gemm::kGroup;
  for (std::size_t first = 0; first < x.size(); first += together) {
    float largest = 0;
    for (std::size_t i = first; i < first + together; ++i)
      largest = std::max(largest, static_cast<float>(std::fabs(all[i])));
    if (largest == 0) continue;
    const float factor = 127.0F / largest;
    for (std::size_t i = first; i < first + together; ++i)
      all[i] = static_cast<double>(std::nearbyint(static_cast<float>(all[i]) * factor)) *
               static_cast<double>(largest / 127.0F);
  }
  return all;
}

Doubles Reference::times(const std::string& name, const Doubles& x) {
  const std::vector<Doubles>& rows = matrix(name);
  const bool router = name.find(".gate.weight") != std::string::npos;
  const bool expert = name.find(".experts.") != std::string::npos;
  const Doubles used = rounded(x, router   ? gemm::Activations::kBf16
                                  : expert ? roundings_.experts
                                           : roundings_.trunk);
  Doubles all;
  all.reserve(rows.size());
  for (const Doubles& row : rows) all.push_back(dot(row, used));
  return all;
}

Doubles Reference::mixed(const std::string& name) {
  std::vector<const Doubles*> vectors;
  for (const Doubles& block : blocks_) vectors.push_back(&block);
  if (!running_.empty()) vectors.push_back(&running_);
  const Doubles& proj = vec(name + "_proj.weight");
  const Doubles& norm = vec(name + "_norm.weight");
  Doubles scores;
  for (const Doubles* const one : vectors) scores.push_back(dot(proj, rms_norm(*one, norm)));
  softmax(scores);
  Doubles all;
  for (std::size_t i = 0; i < vectors.size(); ++i) add(all, *vectors[i], scores[i]);
  return all;
}

Doubles Reference::mix(const std::string& name, const std::string& norm) {
  return rms_norm(mixed(name), vec(norm));
}

Doubles Reference::mlp(const std::string& at, const Doubles& x) {
  Doubles gate = times(at + "gate_proj.weight", x);
  const Doubles up = times(at + "up_proj.weight", x);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gemm::situ_exact(gate[i], up[i]);
  return times(at + "down_proj.weight", gate);
}

Doubles Reference::kda(std::size_t layer, const Doubles& x) {
  const std::string at = "model.layers." + std::to_string(layer) + ".self_attn.";
  const std::size_t dim = shape_.head_dim;
  Doubles made[3];
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string name(1, "qkv"[i]);
    std::vector<Doubles>& past = pasts_[at + name];
    past.resize(std::max(past.size(), shape_.convolution - 1), Doubles(shape_.across()));
    past.push_back(times(at + name + "_proj.weight", x));
    const Doubles& taps = vec(at + name + "_conv1d.weight");
    made[i].resize(shape_.across());
    for (std::size_t c = 0; c < shape_.across(); ++c) {
      double sum = 0;
      for (std::size_t tap = 0; tap < shape_.convolution; ++tap)
        sum += taps[c * shape_.convolution + tap] * past[tap][c];
      made[i][c] = sum * sigmoid(sum);
    }
    past.erase(past.begin());
  }
  const Doubles given = times(at + "f_b_proj.weight", times(at + "f_a_proj.weight", x));
  const Doubles& bias = vec(at + "dt_bias");
  const Doubles& a_log = vec(at + "A_log");
  const Doubles betas = times(at + "b_proj.weight", x);
  const Doubles gates = times(at + "g_proj.weight", x);
  const Doubles& norm = vec(at + "o_norm.weight");
  Doubles& states = states_[layer];
  states.resize(shape_.across() * dim);
  Doubles all;
  for (std::size_t head = 0; head < shape_.heads; ++head) {
    double* const state = states.data() + head * dim * dim;
    const auto part = [&](const Doubles& whole) {
      const auto first = whole.begin() + static_cast<std::ptrdiff_t>(head * dim);
      return Doubles(first, first + static_cast<std::ptrdiff_t>(dim));
    };
    Doubles query = part(made[0]);
    Doubles key = part(made[1]);
    const Doubles value = part(made[2]);
    const double of_query = 1 / std::sqrt(dot(query, query) + static_cast<double>(kL2Epsilon)) /
                            std::sqrt(static_cast<double>(dim));
    const double of_key = 1 / std::sqrt(dot(key, key) + static_cast<double>(kL2Epsilon));
    for (std::size_t c = 0; c < dim; ++c) {
      query[c] *= of_query;
      key[c] *= of_key;
      const double a = given[head * dim + c] + bias[head * dim + c];
      const double decay = std::exp(static_cast<double>(kLeastDecay) * sigmoid(std::exp(a_log[head]) * a));
      for (std::size_t j = 0; j < dim; ++j) state[c * dim + j] *= decay;
    }
    Doubles output(dim);
    const double beta = sigmoid(betas[head]);
    for (std::size_t j = 0; j < dim; ++j) {
      double known = 0;
      for (std::size_t i = 0; i < dim; ++i) known += key[i] * state[i * dim + j];
      for (std::size_t i = 0; i < dim; ++i) {
        state[i * dim + j] += beta * key[i] * (value[j] - known);
        output[j] += query[i] * state[i * dim + j];
      }
    }
    const Doubles normed = rms_norm(output, norm);
    for (std::size_t j = 0; j < dim; ++j) all.push_back(normed[j] * sigmoid(gates[head * dim + j]));
  }
  return times(at + "o_proj.weight", all);
}

Doubles Reference::mla(std::size_t layer, const Doubles& x) {
  const std::string at = "model.layers." + std::to_string(layer) + ".self_attn.";
  const std::size_t rank = shape_.cache_rank;
  const Doubles query = times(at + "q_b_proj.weight",
                              rms_norm(times(at + "q_a_proj.weight", x), vec(at + "q_a_layernorm.weight")));
  const Doubles both = times(at + "kv_a_proj_with_mqa.weight", x);
  const auto middle = both.begin() + static_cast<std::ptrdiff_t>(rank);
  Doubles row = rms_norm(Doubles(both.begin(), middle), vec(at + "kv_a_layernorm.weight"));
  row.insert(row.end(), middle, both.end());
  if (roundings_.any) std::transform(row.begin(), row.end(), row.begin(), bf16);
  std::vector<Doubles>& cache = caches_[layer];
  cache.push_back(row);
  const Doubles gates = times(at + "g_proj.weight", x);
  const Doubles all =
      roundings_.any ? absorbed_heads(at, query, gates, cache) : heads(at, query, gates, cache);
  return times(at + "o_proj.weight", all);
}

// Not absorbed: each head's keys and values of every row.
Doubles Reference::heads(const std::string& at, const Doubles& query, const Doubles& gates,
                         const std::vector<Doubles>& cache) {
  const std::size_t rank = shape_.cache_rank;
  const std::size_t dim = shape_.head_dim;
  const std::vector<Doubles>& key_value = matrix(at + "kv_b_proj.weight");
  Doubles all;
  for (std::size_t head = 0; head < shape_.heads; ++head) {
    const double* const own = query.data() + head * shape_.key();
    Doubles scores;
    for (const Doubles& one : cache) {
      double score = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        double key = 0;
        for (std::size_t r = 0; r < rank; ++r) key += key_value[head * 2 * dim + i][r] * one[r];
        score += own[i] * key;
      }
      for (std::size_t i = 0; i < shape_.rest; ++i) score += own[dim + i] * one[rank + i];
      scores.push_back(score / std::sqrt(static_cast<double>(shape_.key())));
    }
    softmax(scores);
    for (std::size_t i = 0; i < dim; ++i) {
      double output = 0;
      for (std::size_t t = 0; t < cache.size(); ++t) {
        double value = 0;
        for (std::size_t r = 0; r < rank; ++r) value += key_value[head * 2 * dim + dim + i][r] * cache[t][r];
        output += scores[t] * value;
      }
      all.push_back(output * sigmoid(gates[head * dim + i]));
    }
  }
  return all;
}

// Rounded where the engine does, which multiplies queries by keys' weights first.
Doubles Reference::absorbed_heads(const std::string& at, const Doubles& query, const Doubles& gates,
                                  const std::vector<Doubles>& cache) {
  const std::size_t rank = shape_.cache_rank;
  const std::size_t dim = shape_.head_dim;
  const std::vector<Doubles>& key_value = matrix(at + "kv_b_proj.weight");
  Doubles all;
  for (std::size_t head = 0; head < shape_.heads; ++head) {
    const auto own = query.begin() + static_cast<std::ptrdiff_t>(head * shape_.key());
    const Doubles used = rounded(Doubles(own, own + static_cast<std::ptrdiff_t>(dim)), roundings_.trunk);
    Doubles meets(rank);
    for (std::size_t i = 0; i < dim; ++i) add(meets, key_value[head * 2 * dim + i], used[i]);
    meets.insert(meets.end(), own + static_cast<std::ptrdiff_t>(dim),
                 own + static_cast<std::ptrdiff_t>(shape_.key()));
    Doubles scores;
    for (const Doubles& one : cache)
      scores.push_back(dot(meets, one) / std::sqrt(static_cast<double>(shape_.key())));
    softmax(scores);
    Doubles context;
    for (std::size_t t = 0; t < cache.size(); ++t) add(context, cache[t], scores[t]);
    context.resize(rank);
    context = rounded(context, roundings_.trunk);
    for (std::size_t i = 0; i < dim; ++i)
      all.push_back(dot(key_value[head * 2 * dim + dim + i], context) * sigmoid(gates[head * dim + i]));
  }
  return all;
}

// The experts that are held with the largest scores and biases; of equals the first.
std::vector<std::int16_t> Reference::choose(const std::string& at, const Doubles& scores) {
  const Doubles& bias = vec(at + "gate.e_score_correction_bias");
  std::vector<std::int16_t> all(shape_.experts);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int16_t>(i);
  const auto value = [&](std::int16_t expert) {
    const auto i = static_cast<std::size_t>(expert);
    return sigmoid(scores[i]) + bias[i];
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](std::int16_t a, std::int16_t b) { return value(a) > value(b); });
  all.resize(shape_.used);
  return all;
}

Doubles Reference::moe(std::size_t layer, const Doubles& x, const std::int16_t* ids) {
  const std::string at = "model.layers." + std::to_string(layer) + ".block_sparse_moe.";
  const Doubles scores = times(at + "gate.weight", x);
  if (ids == nullptr) {
    const std::vector<std::int16_t> own = choose(at, scores);
    std::copy(own.begin(), own.end(), chosen_.begin() + static_cast<std::ptrdiff_t>(layer * shape_.used));
    ids = chosen_.data() + layer * shape_.used;
  }
  const Doubles z = times(at + "routed_expert_down_proj.weight", x);
  double sum = 1e-20;
  for (std::size_t k = 0; k < shape_.used; ++k) sum += sigmoid(scores[static_cast<std::size_t>(ids[k])]);
  Doubles total;
  for (std::size_t k = 0; k < shape_.used; ++k) {
    const std::string expert = at + "experts." + std::to_string(ids[k]) + ".";
    Doubles gate = times(expert + "w1.weight", z);
    const Doubles up = times(expert + "w3.weight", z);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gemm::situ_exact(gate[i], up[i]);
    add(total, times(expert + "w2.weight", gate), sigmoid(scores[static_cast<std::size_t>(ids[k])]) / sum);
  }
  Doubles all =
      times(at + "routed_expert_up_proj.weight", rms_norm(total, vec(at + "routed_expert_norm.weight")));
  if (shape_.shared > 0) add(all, mlp(at + "shared_experts.", x));
  return all;
}

Reference::Step Reference::step(std::size_t token, const std::int16_t* ids) {
  blocks_.clear();
  if (ids == nullptr) chosen_.assign(shape_.layers * shape_.used, -1);
  running_ = matrix("model.embed_tokens.weight")[token];
  for (std::size_t i = 0; i < shape_.layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    if (i % shape_.block_layers == 0) {
      blocks_.push_back(running_);
      running_.clear();
    }
    const Doubles x = mix(at + "self_attention_res", at + "input_layernorm.weight");
    add(running_, shape_.mla[i] ? mla(i, x) : kda(i, x));
    const Doubles y = mix(at + "mlp_res", at + "post_attention_layernorm.weight");
    add(running_,
        shape_.dense(i) ? mlp(at + "mlp.", y) : moe(i, y, ids == nullptr ? nullptr : ids + i * shape_.used));
  }
  Step step;
  step.hidden = mixed("model.output_attn_res");
  step.logits = times("lm_head.weight", rms_norm(step.hidden, vec("model.norm.weight")));
  return step;
}

}  // namespace k3gate::decode
