// A whole miniature in float64, from tensors by their released names: own arithmetic, of no kernel's code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../gemm/random_weights.hpp"
#include "shape.hpp"

namespace k3gate::decode {

// A tensor as a checkpoint stores it; of short ones the values alone.
struct Tensor {
  gemm::OwnedSource matrix{};
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

// One sequence.
class Reference {
 public:
  Reference(const Shape& shape, const Tensors& tensors);

  struct Step {
    std::vector<double> logits;
    std::vector<double> hidden;  // what the head's norm takes
  };
  // `ids` [layers][used].
  Step step(std::size_t token, const std::int16_t* ids);
  // Of a layer of MLA, a row each: what is there before the first step, and what was added.
  std::vector<std::vector<double>>& cache(std::size_t layer) { return caches_[layer]; }

 private:
  using Doubles = std::vector<double>;

  const std::vector<Doubles>& matrix(const std::string& name);
  Doubles vec(const std::string& name) const;
  Doubles times(const std::string& name, const Doubles& x);
  Doubles mix(const std::string& name, const std::string& norm) const;
  Doubles mlp(const std::string& at, const Doubles& x);
  Doubles kda(std::size_t layer, const Doubles& x);
  Doubles mla(std::size_t layer, const Doubles& x);
  Doubles moe(std::size_t layer, const Doubles& x, const std::int16_t* ids);
  Doubles mixed(const std::string& name) const;

  const Shape& shape_;
  const Tensors& tensors_;
  std::map<std::string, std::vector<Doubles>> matrices_;
  std::map<std::size_t, std::vector<Doubles>> caches_;
  std::map<std::size_t, Doubles> states_;
  std::map<std::string, std::vector<Doubles>> pasts_;
  std::vector<Doubles> blocks_;
  Doubles running_;
};

}  // namespace k3gate::decode
