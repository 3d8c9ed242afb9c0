// A whole miniature in float64, from tensors by their released names: own arithmetic, of no kernel's code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../gemm/gemm.hpp"
#include "../gemm/random_weights.hpp"
#include "shape.hpp"

namespace k3gate::decode {

// A tensor as a checkpoint stores it; of short ones the values alone.
struct Tensor {
  gemm::OwnedSource matrix{};
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

// Rows of tensors as numbers, each made once.
class Numbers {
 public:
  explicit Numbers(const Tensors& tensors) : tensors_(tensors) {}
  const std::vector<std::vector<double>>& matrix(const std::string& name);
  const std::vector<double>& vec(const std::string& name);

 private:
  const Tensors& tensors_;
  std::map<std::string, std::vector<std::vector<double>>> matrices_;
  std::map<std::string, std::vector<double>> vecs_;
};

// What an engine rounds: what comes into products, to BF16 and then to what their variant multiplies, and
// rows of caches. Whoever rounds as the engine does must come out very near it; and what rounding takes from
// the exact numbers is known then, however ill-conditioned the weights are.
struct Roundings {
  bool any = false;
  gemm::Activations trunk = gemm::Activations::kBf16;
  gemm::Activations experts = gemm::Activations::kBf16;
};

// One sequence.
class Reference {
 public:
  Reference(const Shape& shape, Numbers& numbers, const Roundings& roundings)
      : shape_(shape), numbers_(numbers), roundings_(roundings) {}

  struct Step {
    std::vector<double> logits;
    std::vector<double> hidden;  // what the head's norm takes
  };
  // `ids` [layers][used]; without any the router chooses, as `chosen` then tells.
  Step step(std::size_t token, const std::int16_t* ids);
  // Of the last step without ids: [layers][used], the best first; -1 in dense layers.
  const std::vector<std::int16_t>& chosen() const { return chosen_; }
  // Of a layer of MLA, a row each: what is there before the first step, and what was added.
  std::vector<std::vector<double>>& cache(std::size_t layer) { return caches_[layer]; }

 private:
  using Doubles = std::vector<double>;

  const std::vector<Doubles>& matrix(const std::string& name) { return numbers_.matrix(name); }
  const Doubles& vec(const std::string& name) { return numbers_.vec(name); }
  Doubles times(const std::string& name, const Doubles& x);
  Doubles rounded(const Doubles& x, gemm::Activations kind) const;
  Doubles heads(const std::string& at, const Doubles& query, const Doubles& gates,
                const std::vector<Doubles>& cache);
  Doubles absorbed_heads(const std::string& at, const Doubles& query, const Doubles& gates,
                         const std::vector<Doubles>& cache);
  Doubles mix(const std::string& name, const std::string& norm);
  Doubles mlp(const std::string& at, const Doubles& x);
  Doubles kda(std::size_t layer, const Doubles& x);
  Doubles mla(std::size_t layer, const Doubles& x);
  Doubles moe(std::size_t layer, const Doubles& x, const std::int16_t* ids);
  Doubles mixed(const std::string& name);
  std::vector<std::int16_t> choose(const std::string& at, const Doubles& scores);

  const Shape& shape_;
  Numbers& numbers_;
  const Roundings roundings_;
  std::map<std::size_t, std::vector<Doubles>> caches_;
  std::map<std::size_t, Doubles> states_;
  std::map<std::string, std::vector<Doubles>> pasts_;
  std::vector<Doubles> blocks_;
  Doubles running_;
  std::vector<std::int16_t> chosen_;
};

}  // namespace k3gate::decode
