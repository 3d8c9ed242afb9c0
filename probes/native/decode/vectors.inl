// Included for each instruction set with K3_TARGET and K3_VECTOR, the bytes of its registers, set, within a
// namespace of its own.

#include "../gemm/situ.inl"

#define K3_INLINE K3_TARGET inline __attribute__((always_inline))

typedef float V __attribute__((vector_size(K3_VECTOR)));
typedef float Loose __attribute__((vector_size(K3_VECTOR), aligned(4), may_alias));
constexpr std::size_t kLanes = K3_VECTOR / sizeof(float);
// Heads whose sums of four rows lie in registers.
constexpr std::size_t kHeads = kLanes == 16 ? 4 : 2;

K3_INLINE float sum_of(V v) {
  float sum = 0;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

K3_TARGET float dot(const float* __restrict a, const float* __restrict b, std::size_t count) {
  V sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j)
      sums[j] += *reinterpret_cast<const Loose*>(a + i + j * kLanes) *
                 *reinterpret_cast<const Loose*>(b + i + j * kLanes);
  }
  for (; i + kLanes <= count; i += kLanes)
    sums[0] += *reinterpret_cast<const Loose*>(a + i) * *reinterpret_cast<const Loose*>(b + i);
  const V all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float sum = sum_of(all);
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

K3_TARGET void add(const float* __restrict from, float factor, std::size_t count, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

K3_TARGET void scale(const float* from, float factor, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

K3_INLINE std::uint16_t rounded(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto result = static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
  return value != value ? static_cast<std::uint16_t>(0x7fc0U) : result;
}

K3_TARGET void normalise(const float* __restrict from, const float* __restrict weight, float factor,
                         std::size_t count, std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = rounded(from[i] * factor * weight[i]);
}

K3_TARGET void to_bf16(const float* __restrict from, std::size_t count, std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = rounded(from[i]);
}

K3_TARGET void from_bf16(const std::uint16_t* __restrict from, std::size_t count, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
}

K3_TARGET void sigmoid_loop(const float* __restrict from, std::size_t count, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = sigmoid(from[i]);
}

K3_TARGET void convolve(const float* __restrict input, const float* __restrict taps, std::size_t width,
                        std::size_t channels, float* __restrict past, float* __restrict to) {
  for (std::size_t i = 0; i < channels; ++i) to[i] = taps[i * width + width - 1] * input[i];
  for (std::size_t tap = 0; tap + 1 < width; ++tap) {
    float* const row = past + tap * channels;
    const float* const next = tap + 2 < width ? row + channels : input;
    for (std::size_t i = 0; i < channels; ++i) to[i] += taps[i * width + tap] * row[i];
    for (std::size_t i = 0; i < channels; ++i) row[i] = next[i];
  }
  for (std::size_t i = 0; i < channels; ++i) to[i] *= sigmoid(to[i]);
}

K3_TARGET void decay(const float* __restrict given, const float* __restrict bias, float steepness,
                     std::size_t count, float* __restrict to) {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = exponential(kLeastDecay * sigmoid(steepness * (given[i] + bias[i])));
}

// Columns of a state do not see each other, so each few of them pass twice while they lie in the nearest
// cache.
template <std::size_t Vectors>
K3_INLINE void step_columns(const HeadStep& step, std::size_t first) {
  V found[Vectors] = {};
  const float* row = step.state + first;
  for (std::size_t i = 0; i < step.dim; ++i, row += step.dim) {
    const float factor = step.key[i] * step.decay[i];
#pragma GCC unroll 8
    for (std::size_t j = 0; j < Vectors; ++j)
      found[j] += factor * *reinterpret_cast<const Loose*>(row + j * kLanes);
  }
  V change[Vectors];
  V out[Vectors] = {};
#pragma GCC unroll 8
  for (std::size_t j = 0; j < Vectors; ++j)
    change[j] = step.beta * (*reinterpret_cast<const Loose*>(step.value + first + j * kLanes) - found[j]);
  float* to = step.state + first;
  for (std::size_t i = 0; i < step.dim; ++i, to += step.dim) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < Vectors; ++j) {
      auto& place = *reinterpret_cast<Loose*>(to + j * kLanes);
      const V now = step.decay[i] * place + step.key[i] * change[j];
      place = now;
      out[j] += step.query[i] * now;
    }
  }
#pragma GCC unroll 8
  for (std::size_t j = 0; j < Vectors; ++j)
    *reinterpret_cast<Loose*>(step.output + first + j * kLanes) = out[j];
}

K3_TARGET void step_head(const HeadStep& step) {
  std::size_t first = 0;
  for (; first + 4 * kLanes <= step.dim; first += 4 * kLanes) step_columns<4>(step, first);
  for (; first + 2 * kLanes <= step.dim; first += 2 * kLanes) step_columns<2>(step, first);
}

K3_TARGET void gate(const float* __restrict from, const float* __restrict weight, float factor,
                    const float* __restrict gates, std::size_t count, std::uint16_t* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = rounded(from[i] * factor * weight[i] * sigmoid(gates[i]));
}

constexpr std::size_t kBlock = 16;

// Scores of `Heads` heads against four rows.
template <std::size_t Heads>
K3_INLINE void score_rows(const float* queries, const float* rows, std::size_t width, float* to) {
  V sums[Heads][4] = {};
  for (std::size_t k = 0; k < width; k += kLanes) {
    V row[4];
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j) row[j] = *reinterpret_cast<const Loose*>(rows + j * width + k);
#pragma GCC unroll 8
    for (std::size_t h = 0; h < Heads; ++h) {
      const V query = *reinterpret_cast<const Loose*>(queries + h * width + k);
#pragma GCC unroll 8
      for (std::size_t j = 0; j < 4; ++j) sums[h][j] += query * row[j];
    }
  }
#pragma GCC unroll 8
  for (std::size_t h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 4; ++j) {
      to[h * kBlock + j] = sum_of(sums[h][j]);
    }
  }
}

// Adds what 16 rows weigh to `Heads` heads' sums, of `Vectors` vectors of columns.
template <std::size_t Heads, std::size_t Vectors>
K3_INLINE void add_rows(const float* weights, const float* rows, std::size_t width, float* to,
                        std::size_t stride) {
  V sums[Heads][Vectors];
#pragma GCC unroll 8
  for (std::size_t h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < Vectors; ++j)
      sums[h][j] = *reinterpret_cast<const Loose*>(to + h * stride + j * kLanes);
  }
  for (std::size_t r = 0; r < kBlock; ++r) {
    V row[Vectors];
#pragma GCC unroll 8
    for (std::size_t j = 0; j < Vectors; ++j)
      row[j] = *reinterpret_cast<const Loose*>(rows + r * width + j * kLanes);
#pragma GCC unroll 8
    for (std::size_t h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
      for (std::size_t j = 0; j < Vectors; ++j) sums[h][j] += weights[h * kBlock + r] * row[j];
    }
  }
#pragma GCC unroll 8
  for (std::size_t h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < Vectors; ++j)
      *reinterpret_cast<Loose*>(to + h * stride + j * kLanes) = sums[h][j];
  }
}

template <std::size_t Heads>
K3_TARGET inline void attend_block(const Attention& all, std::size_t head, std::size_t rows) {
  float* const weights = all.weights + head * kBlock;
  for (std::size_t r = 0; r < kBlock; r += 4)
    score_rows<Heads>(all.queries + head * all.width, all.block + r * all.width, all.width, weights + r);
#pragma GCC unroll 8
  for (std::size_t h = 0; h < Heads; ++h) {
    float* const one = weights + h * kBlock;
    float& largest = all.largest[head + h];
    float most = largest;
    for (std::size_t r = 0; r < rows; ++r) most = one[r] > most ? one[r] : most;
    if (most > largest) {
      // Below every score at first.
      const float factor = largest < -1e38F ? 0.0F : exponential(largest - most);
      all.sums[head + h] *= factor;
      scale(all.output + (head + h) * all.rank, factor, all.rank, all.output + (head + h) * all.rank);
      largest = most;
    }
    for (std::size_t r = 0; r < kBlock; ++r) one[r] = exponential(one[r] - most);
    for (std::size_t r = rows; r < kBlock; ++r) one[r] = 0;
    float sum = 0;
    for (std::size_t r = 0; r < kBlock; ++r) sum += one[r];
    all.sums[head + h] += sum;
  }
  for (std::size_t k = 0; k < all.rank; k += 2 * kLanes)
    add_rows<Heads, 2>(weights, all.block + k, all.width, all.output + head * all.rank + k, all.rank);
}

K3_TARGET void attend(const Attention& all) {
  for (std::size_t h = 0; h < all.heads; ++h) {
    all.largest[h] = -3e38F;
    all.sums[h] = 0;
  }
  for (std::size_t i = 0; i < all.heads * all.rank; ++i) all.output[i] = 0;
  for (std::size_t first = 0; first < all.rows; first += kBlock) {
    const std::size_t rows = all.rows - first < kBlock ? all.rows - first : kBlock;
    from_bf16(all.cache + first * all.width, rows * all.width, all.block);
    for (std::size_t i = rows * all.width; i < kBlock * all.width; ++i) all.block[i] = 0;
    std::size_t head = 0;
    for (; head + kHeads <= all.heads; head += kHeads) attend_block<kHeads>(all, head, rows);
    for (; head < all.heads; ++head) attend_block<1>(all, head, rows);
  }
}

#undef K3_INLINE

constexpr Vectors kVectors = {dot,          add,      scale, normalise, to_bf16, from_bf16,
                              sigmoid_loop, convolve, decay, step_head, gate,    attend};
