// The float32 loops between the products, for every instruction set. No Python here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../gemm/paths.hpp"

namespace k3gate::decode {

// Of one head of KDA; `dim` is a multiple of 32. State [dim of keys][dim of values].
struct HeadStep {
  std::size_t dim;
  float* state;
  const float* query;  // normalised and scaled
  const float* key;    // normalised
  const float* value;
  const float* decay;  // e^g of each channel of the key
  float beta;
  float* output;
};

// Some heads of MLA over some rows of a cache: scores, the largest of each head, and sums by e^(score -
// largest).
struct Attention {
  const float* queries;  // [heads][rank + rest], scaled
  std::size_t heads;
  std::size_t rank;  // of the values, which are the first ones of a row; multiples of 32
  std::size_t width;
  const std::uint16_t* cache;  // BF16 [rows][width]
  std::size_t rows;
  float* block;    // [16][width] to work in
  float* weights;  // [heads][16] to work in
  float* largest;  // [heads]: set
  float* sums;     // [heads]: set
  float* output;   // [heads][rank]: set
};

struct Vectors {
  float (*dot)(const float* a, const float* b, std::size_t count);
  void (*add)(const float* from, float factor, std::size_t count, float* to);    // to += factor x from
  void (*scale)(const float* from, float factor, std::size_t count, float* to);  // may be the same place
  // BF16 of from x weight x factor.
  void (*normalise)(const float* from, const float* weight, float factor, std::size_t count,
                    std::uint16_t* to);
  void (*to_bf16)(const float* from, std::size_t count, std::uint16_t* to);
  void (*from_bf16)(const std::uint16_t* from, std::size_t count, float* to);
  void (*sigmoid)(const float* from, std::size_t count, float* to);
  // SiLU of a causal convolution: `taps` [channels][width], the last tap is that of `input`; `past` [width -
  // 1] [channels], oldest first, takes `input` in.
  void (*convolve)(const float* input, const float* taps, std::size_t width, std::size_t channels,
                   float* past, float* to);
  // e^(-5 sigmoid(steepness (given + bias))).
  void (*decay)(const float* given, const float* bias, float steepness, std::size_t count, float* to);
  void (*step_head)(const HeadStep& step);
  // BF16 of from x weight x factor x sigmoid(gate).
  void (*gate)(const float* from, const float* weight, float factor, const float* gates, std::size_t count,
               std::uint16_t* to);
  void (*attend)(const Attention& attention);
};

// Those that go with a path of products.
const Vectors& vectors(gemm::Path path);

}  // namespace k3gate::decode
