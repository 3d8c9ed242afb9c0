#include "proof.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>

#include "../gemm/rounding.hpp"
#include "reference.hpp"

namespace k3gate::decode {
namespace {

using gemm::Format;
using gemm::kGroup;

constexpr std::size_t kSteps = 3;

bool ends_with(const std::string& text, const char* ending) {
  const std::string_view wanted(ending);
  return text.size() >= wanted.size() &&
         text.compare(text.size() - wanted.size(), wanted.size(), wanted) == 0;
}

// FP16 of a normal number, rounded down.
std::uint16_t half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits >> 23) - 112) << 10 |
         static_cast<std::uint16_t>(bits >> 13 & 1023U);
}

// Of such a deviation. `square`: one scale for 32 x 32 numbers.
gemm::OwnedSource random_matrix(Format format, std::size_t rows, std::size_t depth, double deviation,
                                bool square, std::mt19937_64& dice) {
  gemm::OwnedSource made = gemm::random_weights(format, rows, depth, 0, dice);
  std::normal_distribution<float> normal(0.0F, static_cast<float>(deviation));
  const std::size_t groups = depth / kGroup;
  std::vector<double> sizes(rows * groups);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t block_row = i / groups / kGroup * kGroup;
    const bool same = square && i / groups != block_row;
    sizes[i] = same ? sizes[block_row * groups + i % groups] : std::exp2(static_cast<double>(dice() % 3) - 1);
  }
  if (format == Format::kBf16) {
    for (std::size_t i = 0; i < rows * depth; ++i) {
      const std::uint16_t bits = gemm::to_bf16(normal(dice));
      std::memcpy(made.values.data() + 2 * i, &bits, sizeof bits);
    }
  } else if (format == Format::kMxfp4) {
    // Uniform codes have a deviation of 2.9.
    for (std::size_t i = 0; i < sizes.size(); ++i)
      made.scales[i] = static_cast<std::byte>(127 + std::lround(std::log2(deviation * sizes[i] / 2.9)));
  } else {
    // Uniform bytes have one of 74.
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::uint16_t scale = half(static_cast<float>(deviation * sizes[i] / 74));
      std::memcpy(made.values.data() + i * gemm::kStoredGroup, &scale, sizeof scale);
    }
  }
  return made;
}

Format format_named(const std::string& name) {
  for (const Format format : gemm::formats()) {
    if (gemm::name_of(format) == name) return format;
  }
  return Format::kBf16;
}

Tensors random_tensors(const Model& model, std::mt19937_64& dice) {
  const Shape& shape = model.setup().shape;
  Tensors all;
  for (const TensorInfo& info : model.tensors()) {
    Tensor& tensor = all[info.name];
    if (info.format != "f32") {
      const double deviation =
          info.name == "model.embed_tokens.weight" ? 1 : 1 / std::sqrt(static_cast<double>(info.depth));
      tensor.matrix = random_matrix(format_named(info.format), info.rows, info.depth, deviation,
                                    ends_with(info.name, "kv_b_proj.weight"), dice);
      continue;
    }
    float mean = 1;
    float deviation = 0.1F;
    if (ends_with(info.name, "_proj.weight")) {
      mean = 0;
      deviation = 1 / std::sqrt(static_cast<float>(shape.hidden));
    } else if (ends_with(info.name, "conv1d.weight")) {
      mean = 0;
      deviation = 1 / std::sqrt(static_cast<float>(shape.convolution));
    } else if (ends_with(info.name, "dt_bias")) {
      mean = -2;
      deviation = 1.5F;
    } else if (ends_with(info.name, "A_log")) {
      mean = deviation = 0.5F;
    } else if (ends_with(info.name, "correction_bias")) {
      mean = 0;
      deviation = 0.05F;
    }
    std::normal_distribution<float> normal(mean, deviation);
    tensor.values.resize(info.depth);
    for (float& value : tensor.values) value = gemm::from_bf16(gemm::to_bf16(normal(dice)));
  }
  return all;
}

void load(Model& model, const Tensors& tensors) {
  for (const TensorInfo& info : model.tensors()) {
    const Tensor& tensor = tensors.at(info.name);
    if (info.format == "f32") {
      model.load(info.name, "f32", reinterpret_cast<const std::byte*>(tensor.values.data()),
                 tensor.values.size() * sizeof(float), nullptr, 0);
    } else {
      const gemm::OwnedSource& source = tensor.matrix;
      model.load(info.name, info.format, source.values.data(), source.values.size(), source.scales.data(),
                 source.scales.size());
    }
  }
}

std::string expert_name(std::size_t layer, std::int16_t expert, const char* part) {
  return "model.layers." + std::to_string(layer) + ".block_sparse_moe.experts." + std::to_string(expert) +
         "." + part + ".weight";
}

std::size_t last_layer(const Model& model, bool mla) {
  for (std::size_t i = model.layers.size(); i-- > 0;) {
    if (mla ? model.layers[i].mla.has_value() : model.layers[i].kda.has_value()) return i;
  }
  throw std::invalid_argument("this miniature has no layer for such a fault");
}

// Wrong weights; `ids` are those of the last layer's experts in the last step.
void plant(Tensors& tensors, const Model& model, std::span<const std::int16_t> ids,
           const std::string& fault) {
  const std::size_t last = model.layers.size() - 1;
  if (fault == "expert_scale" || fault == "swapped_experts") {
    const std::string own = expert_name(last, ids[0], "w2");
    if (fault == "expert_scale") {
      std::byte& scale = tensors.at(own).matrix.scales[1];
      scale = static_cast<std::byte>(std::to_integer<unsigned>(scale) + 1);
      return;
    }
    if (ids.size() < 2 || model.setup().shape.used < 2)
      throw std::invalid_argument("one expert has none to change with");
    for (const char* const part : {"w1", "w2", "w3"})
      std::swap(tensors.at(expert_name(last, ids[0], part)), tensors.at(expert_name(last, ids[1], part)));
  } else if (fault == "decay_sign") {
    const std::string at = "model.layers." + std::to_string(last_layer(model, false)) + ".self_attn.";
    for (float& value : tensors.at(at + "dt_bias").values) value = -value;
  } else if (fault == "router_bias") {
    for (auto& [name, tensor] : tensors) {
      if (ends_with(name, "correction_bias"))
        std::fill_n(tensor.values.begin(), model.setup().shape.used, 2.0F);
    }
  } else if (fault == "output_gate") {
    const std::size_t layer =
        model.layers[last].kda ? last : last_layer(model, model.layers[last].mla.has_value());
    Tensor& gate = tensors.at("model.layers." + std::to_string(layer) + ".self_attn.g_proj.weight");
    std::fill(gate.matrix.values.begin(), gate.matrix.values.end(), std::byte{0});
  }
}

// Where the reference rounds as the engine does, what is left are float32's own errors: some 1e-7, but where
// one of them turns a rounding the other way, up to what rounding takes in all.
constexpr double kNear = 0.03;
constexpr double kApart = 1.5;  // of two that round, and some room
// Of so many of the router's choices one may differ beside near ties.
constexpr std::size_t kAllowedChoices = 16;

class Whole {
 public:
  template <class T>
  void see(const T* got, const std::vector<double>& wanted, const std::vector<double>& size) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double error = static_cast<double>(got[i]) - wanted[i];
      errors_ += error * error;
      squares_ += size[i] * size[i];
    }
  }
  double error() const { return std::sqrt(errors_ / squares_); }

 private:
  double errors_ = 0;
  double squares_ = 0;
};

bool planted_in_weights(const std::string& fault) {
  return fault == "expert_scale" || fault == "swapped_experts" || fault == "decay_sign" ||
         fault == "output_gate" || fault == "router_bias";
}

class Prover {
 public:
  Prover(const Setup& setup, std::uint64_t seed, std::string fault)
      : setup_(setup),
        fault_(std::move(fault)),
        dice_(seed),
        engine_(setup, false),
        truth_(alone(setup)),
        numbers_(right_) {
    truth_.allocate();
    right_ = random_tensors(truth_, dice_);
    const Shape& shape = setup.shape;
    const std::size_t rows = setup.batch;
    for (std::size_t i = 0; i < kSteps * shape.layers * rows; ++i) {
      std::vector<std::int16_t> all(shape.experts);
      for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int16_t>(e);
      std::shuffle(all.begin(), all.end(), dice_);
      ids_.insert(ids_.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shape.used));
    }
    for (std::size_t i = 0; i < kSteps * rows; ++i)
      tokens_.push_back(static_cast<std::int32_t>(dice_() % shape.vocabulary));
    Tensors given = right_;
    if (planted_in_weights(fault_))
      plant(given, truth_, std::span(ids_).subspan(ids_.size() - rows * shape.used, shape.used), fault_);
    load(truth_, right_);
    load(engine_.model(), given);
    if (fault_ == "lost_row") engine_.set_lapse(Lapse::kLostRow);
  }

  Verdict verdict() {
    if (!setup_.trunk) {
      Result result = engine_.run(ids_, kSteps, {}, {});
      return judge(check_step(engine_, truth_, setup_.shape.hidden, dice_()));
    }
    follow();
    Verdict whole = steps();
    if (!whole.ok) return whole;
    Verdict stages = judge(check_step(engine_, truth_, setup_.shape.hidden, dice_()));
    if (!stages.ok) return stages;
    Verdict routers = choices();
    if (!routers.ok) return routers;
    stages.detail = whole.detail + "; " + routers.detail + "; " + stages.detail;
    if (setup_.positions < kSteps) return stages;
    Verdict together = prefill();
    if (!together.ok) return together;
    stages.detail += "; " + together.detail;
    return stages;
  }

 private:
  static Setup alone(Setup setup) {
    setup.placement = Placement::kSingle;
    setup.pages = Pages::kSmall;
    setup.bind = false;
    setup.nodes.resize(1);
    setup.cpus.resize(1);
    setup.cpus[0].resize(1);
    return setup;
  }

  std::vector<std::int16_t> ids_of(std::size_t step, std::size_t sequence) const {
    const Shape& shape = setup_.shape;
    std::vector<std::int16_t> ids;
    for (std::size_t layer = 0; layer < shape.layers; ++layer) {
      const auto first =
          ids_.begin() +
          static_cast<std::ptrdiff_t>(((step * shape.layers + layer) * setup_.batch + sequence) * shape.used);
      ids.insert(ids.end(), first, first + static_cast<std::ptrdiff_t>(shape.used));
    }
    return ids;
  }

  // The reference takes the engine's random caches.
  void follow() {
    followers_.reserve(setup_.batch);
    for (std::size_t sequence = 0; sequence < setup_.batch; ++sequence) {
      Reference exact(setup_.shape, numbers_, {});
      Reference& rounding = followers_.emplace_back(setup_.shape, numbers_, roundings());
      for (std::size_t layer = 0; layer < setup_.shape.layers; ++layer) {
        if (!setup_.shape.mla[layer]) continue;
        for (std::size_t position = 0; position < setup_.context; ++position) {
          const std::uint16_t* const row = engine_.cache_row(layer, sequence, position);
          std::vector<double> values;
          for (std::size_t k = 0; k < setup_.shape.cached(); ++k)
            values.push_back(static_cast<double>(gemm::from_bf16(row[k])));
          exact.cache(layer).push_back(values);
          rounding.cache(layer).push_back(values);
        }
      }
      for (std::size_t step = 0; step < kSteps; ++step) {
        const auto token = static_cast<std::size_t>(tokens_[step * setup_.batch + sequence]);
        const std::vector<std::int16_t> ids = ids_of(step, sequence);
        exact_.push_back(exact.step(token, ids.data()));
        rounded_.push_back(rounding.step(token, ids.data()));
      }
    }
  }

  Roundings roundings() const {
    return {true, engine_.variant(setup_.format, setup_.batch).activations,
            engine_.variant(Format::kMxfp4, 1).activations};
  }

  Verdict steps() {
    const Shape& shape = setup_.shape;
    const std::size_t each = shape.layers * setup_.batch * shape.used;
    Whole near;
    Whole far;
    Whole expected;
    for (std::size_t step = 0; step < kSteps; ++step) {
      if (fault_ == "cache_row" && step + 1 == kSteps) {
        const std::size_t layer = last_layer(truth_, true);
        std::uint16_t* const row = engine_.cache_row(layer, 0, setup_.context);
        for (std::size_t k = 0; k < shape.cached(); ++k)
          row[k] = static_cast<std::uint16_t>(row[k] ^ 0x8000U);
      }
      const Result result = engine_.run(std::span(ids_).subspan(step * each, each), 1,
                                        std::span(tokens_).subspan(step * setup_.batch, setup_.batch), {});
      for (std::size_t row = 0; row < setup_.batch; ++row) {
        const Reference::Step& exact = exact_[row * kSteps + step];
        const Reference::Step& rounding = rounded_[row * kSteps + step];
        const float* const logits = result.logits.data() + row * shape.vocabulary;
        const float* const hidden = result.hidden.data() + row * shape.hidden;
        near.see(logits, rounding.logits, exact.logits);
        near.see(hidden, rounding.hidden, exact.hidden);
        far.see(logits, exact.logits, exact.logits);
        far.see(hidden, exact.hidden, exact.hidden);
        expected.see(rounding.logits.data(), exact.logits, exact.logits);
        expected.see(rounding.hidden.data(), exact.hidden, exact.hidden);
        if (row == 0)
          alone_.insert(alone_.end(), logits, logits + static_cast<std::ptrdiff_t>(shape.vocabulary));
      }
    }
    // Once a rounding has turned the other way both are as far from each other as each is from exact numbers.
    const double bound = std::max(kNear, kApart * expected.error());
    const double caches = worst_cache_row();
    char text[240];
    std::snprintf(
        text, sizeof text,
        "all steps: %.2g %% from float64, where rounding takes %.2g %%; %.2g %% from float64 that rounds as "
        "this does, and a row of a cache %.2g %%, of at most %.2g %%",
        100 * far.error(), 100 * expected.error(), 100 * near.error(), 100 * caches, 100 * bound);
    return {near.error() <= bound && far.error() <= 2 * bound && caches <= 2 * bound, text};
  }

  // How far the worst row of all caches is from the reference that rounds, relative to it.
  double worst_cache_row() {
    double worst = 0;
    for (std::size_t sequence = 0; sequence < setup_.batch; ++sequence) {
      for (std::size_t layer = 0; layer < setup_.shape.layers; ++layer) {
        if (!setup_.shape.mla[layer]) continue;
        const std::vector<std::vector<double>>& rows = followers_[sequence].cache(layer);
        for (std::size_t position = 0; position < rows.size(); ++position) {
          const std::uint16_t* const row = engine_.cache_row(layer, sequence, position);
          std::vector<float> got;
          for (std::size_t k = 0; k < setup_.shape.cached(); ++k) got.push_back(gemm::from_bf16(row[k]));
          Whole one;
          one.see(got.data(), rows[position], rows[position]);
          if (!(one.error() <= worst)) worst = one.error();
        }
      }
    }
    return worst;
  }

  // What the router would choose where the experts are forced to those that float64, rounding as the engine
  // does, chooses by itself; from an empty state.
  Verdict choices() {
    engine_.reset();
    const Shape& shape = setup_.shape;
    const std::size_t each = shape.layers * setup_.batch * shape.used;
    std::vector<std::int16_t> ids(kSteps * each);
    for (std::size_t sequence = 0; sequence < setup_.batch; ++sequence) {
      Reference free(shape, numbers_, roundings());
      for (std::size_t layer = 0; layer < shape.layers; ++layer) {
        if (!shape.mla[layer]) continue;
        free.cache(layer) = followers_[sequence].cache(layer);
        free.cache(layer).resize(setup_.context);
      }
      for (std::size_t step = 0; step < kSteps; ++step) {
        free.step(static_cast<std::size_t>(tokens_[step * setup_.batch + sequence]), nullptr);
        for (std::size_t layer = 0; layer < shape.layers; ++layer)
          std::copy_n(free.chosen().begin() + static_cast<std::ptrdiff_t>(layer * shape.used), shape.used,
                      ids.begin() + static_cast<std::ptrdiff_t>(
                                        step * each + (layer * setup_.batch + sequence) * shape.used));
      }
    }
    const Counters seen = engine_.run(ids, kSteps, tokens_, {}).counters;
    char text[160];
    std::snprintf(text, sizeof text,
                  "the router itself chooses %zu of the %zu experts that float64 does, with near ties in %zu "
                  "of %zu choices",
                  static_cast<std::size_t>(seen.agreed), static_cast<std::size_t>(seen.choices),
                  static_cast<std::size_t>(seen.tied), static_cast<std::size_t>(seen.routed));
    // A tie changes places; a rounding that turns the other way may do so a little beyond what counts as one.
    const std::size_t allowed = 2 * seen.tied + seen.choices / kAllowedChoices;
    return {seen.choices - seen.agreed <= allowed, text};
  }

  // Of the first sequence, all at once.
  Verdict prefill() {
    engine_.reset();
    const Shape& shape = setup_.shape;
    std::vector<std::int16_t> ids;
    std::vector<std::int32_t> tokens;
    for (std::size_t layer = 0; layer < shape.layers; ++layer) {
      for (std::size_t step = 0; step < kSteps; ++step) {
        const std::vector<std::int16_t> all = ids_of(step, 0);
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(layer * shape.used);
        ids.insert(ids.end(), first, first + static_cast<std::ptrdiff_t>(shape.used));
      }
    }
    for (std::size_t step = 0; step < kSteps; ++step) tokens.push_back(tokens_[step * setup_.batch]);
    const Result result = engine_.prefill(ids, tokens);
    Whole whole;
    const std::vector<double> steps(alone_.begin(), alone_.end());
    whole.see(result.logits.data(), steps, steps);
    const double error = whole.error();
    char text[160];
    // Sums of another order at most.
    constexpr double kBound = 0x1p-12;
    std::snprintf(text, sizeof text, "a prefill of the same tokens differs by %.2g, of at most %.2g", error,
                  kBound);
    return {error <= kBound, text};
  }

  const Setup setup_;
  const std::string fault_;
  std::mt19937_64 dice_;
  Engine engine_;
  Model truth_;
  Tensors right_;
  std::vector<std::int16_t> ids_;
  std::vector<std::int32_t> tokens_;
  Numbers numbers_;
  std::vector<Reference> followers_;    // of each sequence, rounding as the engine does
  std::vector<Reference::Step> exact_;  // [sequence][step]
  std::vector<Reference::Step> rounded_;
  std::vector<float> alone_;  // logits of the first sequence
};

}  // namespace

Verdict prove(const Setup& setup, std::uint64_t seed, const std::string& fault) {
  constexpr std::size_t kMostWeights = 400'000'000;
  std::size_t weights = 0;
  for (const TensorInfo& info : Model(setup).tensors()) weights += info.rows * info.depth;
  if (weights > kMostWeights) throw std::invalid_argument("a proof computes in float64: give reduced widths");
  if (setup.room < kSteps) throw std::invalid_argument("a proof takes room for three rows of caches");
  if (!fault.empty() && fault != "lost_row" && fault != "cache_row" && !planted_in_weights(fault))
    throw std::invalid_argument("no such fault: " + fault);
  if (fault == "lost_row" && (setup.placement == Placement::kSingle || setup.nodes.size() < 2))
    throw std::invalid_argument("on one node no row is sent");
  if (!setup.trunk && !fault.empty() && fault != "lost_row" && fault != "expert_scale" &&
      fault != "swapped_experts")
    throw std::invalid_argument("without a trunk there is no such fault");
  return Prover(setup, seed, fault).verdict();
}

}  // namespace k3gate::decode
