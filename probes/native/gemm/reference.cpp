#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "rounding.hpp"
#include "weights.hpp"

namespace k3gate::gemm {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kDrift = 2 * kUnit;
constexpr double kLeastNormal = 0x1p-126;
constexpr double kLeastDenormal = 0x1p-149;

// A token's activations as a variant uses them.
struct Inputs {
  std::vector<double> exact;
  std::vector<double> used;
  std::vector<double> steps;  // of the rounding; 0 where there is none
};

// Rounds columns `begin` to `end`, which share a scale.
void round_inputs(const std::uint16_t* activations, std::size_t begin, std::size_t end, Inputs& inputs) {
  float largest = 0;
  for (std::size_t k = begin; k < end; ++k) {
    const float value = from_bf16(activations[k]);
    largest = std::fabs(value) > largest || std::isnan(value) ? std::fabs(value) : largest;
  }
  const bool zero = largest < kLeastActivation;
  const float factor = zero ? 0.0F : 127.0F / largest;
  const double step = zero ? static_cast<double>(kLeastActivation) : static_cast<double>(largest / 127.0F);
  for (std::size_t k = begin; k < end; ++k) {
    const float scaled = from_bf16(activations[k]) * factor;
    inputs.used[k] = zero ? 0.0 : static_cast<double>(std::nearbyint(scaled)) * step;
    inputs.steps[k] = step;
  }
}

Inputs inputs_of(const std::uint16_t* activations, std::size_t depth, Activations kind) {
  Inputs inputs{std::vector<double>(depth), {}, std::vector<double>(depth)};
  for (std::size_t k = 0; k < depth; ++k) inputs.exact[k] = static_cast<double>(from_bf16(activations[k]));
  inputs.used = inputs.exact;
  if (kind == Activations::kBf16) return inputs;
  const std::size_t together = kind == Activations::kInt8 ? depth : kGroup;
  for (std::size_t k = 0; k < depth; k += together) round_inputs(activations, k, k + together, inputs);
  return inputs;
}

Expected expect(std::span<const double> weights, const Inputs& inputs, Activations kind) {
  double value = 0;
  double unrounded = 0;
  double terms = 0;
  double weight_sum = 0;
  double input_sum = 0;
  double largest = 0;
  double variance = 0;
  double stepped = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const double term = weights[k] * inputs.used[k];
    variance += term * term;
    const double weight = std::fabs(weights[k]);
    value += weights[k] * inputs.used[k];
    unrounded += weights[k] * inputs.exact[k];
    terms += weight * std::fabs(inputs.used[k]);
    weight_sum += weight;
    stepped += weight * inputs.steps[k];
    input_sum += std::fabs(inputs.used[k]);
    largest = std::max(largest, weight);
  }
  const auto depth = static_cast<double>(weights.size());
  const bool whole = kind != Activations::kBf16;
  const double roundings = whole ? 3 + depth / kGroup : 4 + depth + depth / kGroup;
  double flushed = whole ? 0 : kLeastNormal * (weight_sum + (1 + largest) * (input_sum + 2 * depth));
  if (kind == Activations::kInt8Groups) flushed = kLeastDenormal * depth / kGroup;
  // The last is float32's own least step: an output may be denormal.
  const double bound = roundings * kUnit * terms + flushed + kLeastDenormal;
  const double rounding = stepped * (0.5 + 0x1p-16) + bound;
  return {value, bound, unrounded, rounding, variance, flushed + kLeastDenormal};
}

}  // namespace

std::vector<Expected> expect_row(std::span<const double> weights, const std::uint16_t* activations,
                                 std::size_t tokens, Activations kind) {
  std::vector<Expected> expected;
  for (std::size_t token = 0; token < tokens; ++token) {
    const Inputs inputs = inputs_of(activations + token * weights.size(), weights.size(), kind);
    expected.push_back(expect(weights, inputs, kind));
  }
  return expected;
}

Comparison compare(const RowOf& row_of, std::span<const std::size_t> rows, std::size_t row_count,
                   const std::uint16_t* activations, std::size_t tokens, Activations kind,
                   const float* output) {
  Comparison found;
  for (std::size_t i = 0; i < tokens * row_count; ++i) found.unwritten += std::isfinite(output[i]) ? 0 : 1;
  std::vector<Inputs> inputs;
  double errors = 0;
  double squares = 0;
  double drift = 0;
  double explained = 0;
  for (const std::size_t row : rows) {
    const std::vector<double> weights = row_of(row);
    for (std::size_t token = inputs.size(); token < tokens; ++token)
      inputs.push_back(inputs_of(activations + token * weights.size(), weights.size(), kind));
    for (std::size_t token = 0; token < tokens; ++token) {
      const Expected wanted = expect(weights, inputs[token], kind);
      const auto got = static_cast<double>(output[token * row_count + row]);
      const double error = std::fabs(got - wanted.value);
      const double unrounded = std::fabs(got - wanted.unrounded);
      ++found.checked;
      // Written so that what is not a number is wrong.
      if (!(error <= wanted.bound && unrounded <= wanted.rounding)) {
        if (found.wrong++ == 0) {
          found.first_row = row;
          found.first_token = token;
        }
      }
      const double ratio = error / wanted.bound;
      found.worst = ratio <= found.worst ? found.worst
                    : std::isnan(ratio)  ? std::numeric_limits<double>::infinity()
                                         : ratio;
      drift += error * error;
      explained += kDrift * kDrift * static_cast<double>(weights.size()) * wanted.variance +
                   wanted.flushed * wanted.flushed;
      errors += unrounded * unrounded;
      squares += wanted.unrounded * wanted.unrounded;
    }
  }
  // Infinity where an output is not a number, which no comparison with it may hide.
  found.drift = std::isfinite(drift) ? std::sqrt(drift / explained) : std::numeric_limits<double>::infinity();
  if (found.checked == 0) found.drift = 0;
  found.error = squares > 0 ? std::sqrt(errors / squares) : 0;
  return found;
}

void merge(Comparison& to, const Comparison& other) {
  if (to.wrong == 0 && other.wrong != 0) {
    to.first_row = other.first_row;
    to.first_token = other.first_token;
  }
  to.checked += other.checked;
  to.wrong += other.wrong;
  to.unwritten += other.unwritten;
  to.worst = std::max(to.worst, other.worst);
  to.error = std::max(to.error, other.error);
  to.drift = std::max(to.drift, other.drift);
}

std::vector<std::size_t> sample_rows(std::size_t rows, std::size_t count, std::uint64_t seed) {
  std::vector<std::size_t> all(rows);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::size_t> chosen;
  std::mt19937_64 dice(seed);
  std::sample(all.begin(), all.end(), std::back_inserter(chosen), count, dice);
  // Where code differs at the edges.
  if (chosen.size() > 1 && chosen.size() < rows && rows > 2 * kTileRows) {
    chosen.front() = dice() % kTileRows;
    chosen.back() = rows - 1 - dice() % kTileRows;
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  }
  return chosen;
}

}  // namespace k3gate::gemm
