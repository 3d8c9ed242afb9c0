// Tensors by their released names: which there are, how they come in, and what lies in memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "../gemm/rounding.hpp"
#include "model.hpp"

namespace k3gate::decode {
namespace {

using gemm::Format;
using gemm::kGroup;
using gemm::scale_bytes;
using gemm::value_bytes;

constexpr std::size_t kStoredQ8 = gemm::kStoredGroup;

float half(const std::byte* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float size =
      std::ldexp(static_cast<float>(exponent == 0 ? fraction : 1024 + fraction), std::max(exponent, 1) - 25);
  return bits >> 15 == 0 ? size : -size;
}

// The k-th number of a row as it is stored.
float stored(Format format, const std::byte* values, const std::byte* scales, std::size_t k) {
  switch (format) {
    case Format::kMxfp4: {
      const auto pair = std::to_integer<unsigned>(values[k / 2]);
      const unsigned code = k % 2 == 0 ? pair & 15U : pair >> 4U;
      return std::ldexp(static_cast<float>(gemm::kDoubledCodes[code]),
                        std::to_integer<int>(scales[k / kGroup]) - 128);
    }
    case Format::kBf16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, values + 2 * k, sizeof bits);
      return gemm::from_bf16(bits);
    }
    default:
      break;
  }
  const std::byte* const block = values + k / kGroup * kStoredQ8;
  return half(block) * static_cast<float>(static_cast<std::int8_t>(block[2 + k % kGroup]));
}
}  // namespace

void Model::embed(std::size_t token, float* to) const {
  const std::byte* const row = memory_.at(embedding_) + token * embedding_row_;
  const std::size_t hidden = setup_.shape.hidden;
  const std::byte* const scales = row + value_bytes(setup_.format, 1, hidden);
  for (std::size_t k = 0; k < hidden; ++k) to[k] = stored(setup_.format, row, scales, k);
}

// Calls visit(Found) for each tensor; it returns whether to go on.
template <class Visit>
void Model::visit(const Visit& visit) const {
  auto& self = const_cast<Model&>(*this);
  const Shape& shape = setup_.shape;
  const std::string trunk(gemm::name_of(setup_.format));
  bool going = true;
  const auto show = [&](Found found) { going = going && visit(found); };
  const auto matrix = [&](const std::string& name, Matrix& one, std::size_t piece) {
    Found found;
    found.pieces = {{&one, piece}};
    found.info = {name, std::string(gemm::name_of(one.format())), one.order().piece_rows(piece), one.depth()};
    show(std::move(found));
  };
  const auto vec = [&](const std::string& name, Vec& one, Mix* mix, Kda* kda) {
    Found found;
    found.vec = &one;
    found.mix = mix;
    found.kda = kda;
    found.info = {name, "f32", 1, one.count};
    show(std::move(found));
  };
  const auto mix = [&](const std::string& name, Mix& one) {
    vec(name + "_norm.weight", one.norm, &one, nullptr);
    vec(name + "_proj.weight", one.proj, &one, nullptr);
  };
  const auto mlp = [&](const std::string& at, Mlp& one) {
    matrix(at + "gate_proj.weight", one.gate_up, 0);
    matrix(at + "up_proj.weight", one.gate_up, 1);
    matrix(at + "down_proj.weight", one.down, 0);
  };
  if (setup_.trunk) {
    Found found;
    found.embedding = true;
    found.info = {"model.embed_tokens.weight", trunk, shape.vocabulary, shape.hidden};
    show(std::move(found));
  }
  for (std::size_t i = 0; i < shape.layers && going; ++i) {
    Layer& layer = self.layers[i];
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const std::string attention = at + "self_attn.";
    if (setup_.trunk) {
      vec(at + "input_layernorm.weight", layer.attention_norm, nullptr, nullptr);
      vec(at + "post_attention_layernorm.weight", layer.mlp_norm, nullptr, nullptr);
      mix(at + "self_attention_res", layer.attention_mix);
      mix(at + "mlp_res", layer.mlp_mix);
    }
    if (layer.kda) {
      Kda& kda = *layer.kda;
      const char* const names[] = {"q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj"};
      for (std::size_t piece = 0; piece < 6; ++piece)
        matrix(attention + names[piece] + ".weight", kda.proj, piece);
      matrix(attention + "f_b_proj.weight", kda.f_b, 0);
      matrix(attention + "o_proj.weight", kda.out, 0);
      for (std::size_t tap = 0; tap < 3; ++tap)
        vec(attention + std::string(1, "qkv"[tap]) + "_conv1d.weight", kda.taps[tap], nullptr, nullptr);
      vec(attention + "dt_bias", kda.bias, nullptr, nullptr);
      vec(attention + "A_log", kda.a_log, nullptr, &kda);
      vec(attention + "o_norm.weight", kda.norm, nullptr, nullptr);
    }
    if (layer.mla) {
      Mla& mla = *layer.mla;
      matrix(attention + "q_a_proj.weight", mla.proj, 0);
      matrix(attention + "kv_a_proj_with_mqa.weight", mla.proj, 1);
      matrix(attention + "g_proj.weight", mla.proj, 2);
      vec(attention + "q_a_layernorm.weight", mla.query_norm, nullptr, nullptr);
      vec(attention + "kv_a_layernorm.weight", mla.cache_norm, nullptr, nullptr);
      matrix(attention + "q_b_proj.weight", mla.q_b, 0);
      matrix(attention + "o_proj.weight", mla.out, 0);
      Found found;
      found.key_value = &mla;
      found.info = {attention + "kv_b_proj.weight", trunk, 2 * shape.across(), shape.cache_rank};
      show(std::move(found));
    }
    if (layer.dense) mlp(at + "mlp.", *layer.dense);
    if (!layer.moe) continue;
    Moe& moe = *layer.moe;
    const std::string block = at + "block_sparse_moe.";
    if (setup_.trunk) {
      matrix(block + "gate.weight", moe.router, 0);
      vec(block + "gate.e_score_correction_bias", moe.bias, nullptr, nullptr);
      matrix(block + "routed_expert_down_proj.weight", moe.latent_down, 0);
      matrix(block + "routed_expert_up_proj.weight", moe.latent_up, 0);
      vec(block + "routed_expert_norm.weight", moe.norm, nullptr, nullptr);
      if (moe.shared) mlp(block + "shared_experts.", *moe.shared);
    }
    for (std::size_t expert = 0; expert < shape.experts && going; ++expert) {
      const char* const names[] = {"w1", "w3", "w2"};
      for (std::size_t part = 0; part < 3; ++part) {
        Found found;
        for (auto& group : moe.experts) {
          if (!group[expert]) continue;
          Matrix& one = part == 2 ? group[expert]->down : group[expert]->gate_up;
          found.pieces.push_back({&one, part == 1 ? 1U : 0U});
        }
        const Matrix& one = *found.pieces[0].matrix;
        found.info = {block + "experts." + std::to_string(expert) + "." + names[part] + ".weight", "mxfp4",
                      part == 2 ? shape.width : shape.inner, one.depth()};
        show(std::move(found));
      }
    }
  }
  if (setup_.trunk) {
    vec("model.norm.weight", self.norm, nullptr, nullptr);
    mix("model.output_attn_res", self.output_mix);
    matrix("lm_head.weight", self.head, 0);
  }
}

std::vector<TensorInfo> Model::tensors() const {
  std::vector<TensorInfo> all;
  visit([&all](const Found& found) {
    all.push_back(found.info);
    return true;
  });
  return all;
}

std::optional<Model::Found> Model::find(const std::string& name) const {
  std::optional<Found> wanted;
  visit([&](const Found& found) {
    if (found.info.name == name) wanted = found;
    return !wanted;
  });
  return wanted;
}

std::string Model::missing() const {
  std::string first;
  if (filled_) return first;
  visit([&](const Found& found) {
    if (std::find(loaded_.begin(), loaded_.end(), found.info.name) == loaded_.end()) first = found.info.name;
    return first.empty();
  });
  return first;
}

void Model::load(const std::string& name, const std::string& format, const std::byte* data, std::size_t bytes,
                 const std::byte* scales, std::size_t scale_size) {
  const std::optional<Found> found = find(name);
  if (!found) throw std::invalid_argument("no tensor " + name + " in this shape");
  const TensorInfo& info = found->info;
  const std::size_t count = info.rows * info.depth;
  const auto wrong = [&](std::size_t wanted, std::size_t wanted_scales) {
    if (bytes != wanted || scale_size != wanted_scales)
      throw std::invalid_argument(name + " takes " + std::to_string(wanted) + " bytes and " +
                                  std::to_string(wanted_scales) + " of scales");
  };
  // Float32 that stands for BF16, or the other way round.
  std::vector<std::uint16_t> halves;
  if (info.format == "f32" || (info.format == "bf16" && format == "f32")) {
    if (format != "f32" && format != "bf16")
      throw std::invalid_argument(name + " is stored as float32 or bf16");
    wrong(count * (format == "f32" ? 4 : 2), 0);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (format == "f32") {
        std::memcpy(&values[i], data + 4 * i, 4);
      } else {
        values[i] = stored(Format::kBf16, data, nullptr, i);
      }
    }
    if (found->vec != nullptr) {
      set(*found->vec, std::move(values));
      if (found->mix != nullptr) set_mix(*found->mix);
      if (found->kda != nullptr) set_steepness(*found->kda);
      loaded_.push_back(name);
      return;
    }
    for (const float value : values) {
      halves.push_back(gemm::to_bf16(value));
      if (gemm::from_bf16(halves.back()) != value && value == value)
        throw std::invalid_argument(name + " has numbers that are no bf16");
    }
    data = reinterpret_cast<const std::byte*>(halves.data());
  } else {
    if (format != info.format) throw std::invalid_argument(name + " is stored as " + info.format);
    const Format kind = found->pieces.empty() ? setup_.format : found->pieces[0].matrix->format();
    wrong(value_bytes(kind, info.rows, info.depth), scale_bytes(kind, info.rows, info.depth));
  }
  const Format kind = found->pieces.empty() ? setup_.format : found->pieces[0].matrix->format();
  const gemm::Source source{kind, info.rows, info.depth, data, scales};
  if (found->embedding) {
    load_embedding(source);
  } else if (found->key_value != nullptr) {
    load_key_value(*found->key_value, source);
  } else {
    for (const Piece& piece : found->pieces) piece.matrix->load(piece.piece, source);
  }
  loaded_.push_back(name);
}

void Model::load_embedding(const gemm::Source& source) {
  const std::size_t values = value_bytes(source.format, 1, source.depth);
  const std::size_t scales = scale_bytes(source.format, 1, source.depth);
  for (std::size_t row = 0; row < source.rows; ++row) {
    std::byte* const to = memory_.at(embedding_) + row * embedding_row_;
    std::memcpy(to, source.values + row * values, values);
    if (scales > 0) std::memcpy(to + values, source.scales + row * scales, scales);
  }
}

// Keys are multiplied transposed, so scales must be of square blocks; released weights are BF16 and have
// none.
void Model::load_key_value(Mla& mla, const gemm::Source& source) {
  const Shape& shape = setup_.shape;
  const std::size_t dim = shape.head_dim;
  const std::size_t rank = shape.cache_rank;
  const Format format = source.format;
  const std::size_t row_values = value_bytes(format, 1, rank);
  const std::size_t row_scales = scale_bytes(format, 1, rank);
  std::vector<std::byte> keys(value_bytes(format, shape.heads * rank, dim));
  std::vector<std::byte> key_scales(scale_bytes(format, shape.heads * rank, dim));
  std::vector<std::byte> values(value_bytes(format, shape.across(), rank));
  std::vector<std::byte> value_scales(scale_bytes(format, shape.across(), rank));
  const auto square = [](bool holds) {
    if (!holds)
      throw std::invalid_argument(
          "rows of one block of kv_b_proj have scales of their own: it cannot be transposed");
  };
  for (std::size_t number = 0; number < shape.heads; ++number) {
    for (std::size_t i = 0; i < dim; ++i) {
      const std::size_t from = number * 2 * dim + i;
      const std::byte* const row = source.values + from * row_values;
      const std::byte* const first_row = source.values + (from - i % kGroup) * row_values;
      for (std::size_t r = 0; r < rank; ++r) {
        const std::size_t to = (number * rank + r) * dim + i;  // the number in order
        if (format == Format::kBf16) {
          std::memcpy(keys.data() + 2 * to, row + 2 * r, 2);
        } else if (format == Format::kMxfp4) {
          const auto pair = std::to_integer<unsigned>(row[r / 2]);
          const unsigned code = r % 2 == 0 ? pair & 15U : pair >> 4U;
          keys[to / 2] |= static_cast<std::byte>(to % 2 == 0 ? code : code << 4U);
          const std::byte scale = source.scales[from * row_scales + r / kGroup];
          square(scale == source.scales[(from - i % kGroup) * row_scales + r / kGroup]);
          key_scales[to / kGroup] = scale;
        } else {
          const std::byte* const block = row + r / kGroup * kStoredQ8;
          square(std::memcmp(block, first_row + r / kGroup * kStoredQ8, 2) == 0);
          std::byte* const made = keys.data() + to / kGroup * kStoredQ8;
          std::memcpy(made, block, 2);
          made[2 + to % kGroup] = block[2 + r % kGroup];
        }
      }
    }
    const std::size_t from = number * 2 * dim + dim;
    std::memcpy(values.data() + number * dim * row_values, source.values + from * row_values,
                dim * row_values);
    if (row_scales > 0)
      std::memcpy(value_scales.data() + number * dim * row_scales, source.scales + from * row_scales,
                  dim * row_scales);
  }
  mla.k_b.load(0, {format, shape.heads * rank, dim, keys.data(), key_scales.data()});
  mla.v_b.load(0, {format, shape.across(), rank, values.data(), value_scales.data()});
}

std::vector<float> Model::weights(const std::string& name) const {
  const std::optional<Found> found = find(name);
  if (!found) throw std::invalid_argument("no tensor " + name + " in this shape");
  if (found->vec != nullptr) return found->vec->values;
  const TensorInfo& info = found->info;
  std::vector<float> all(info.rows * info.depth);
  const auto put = [&](std::size_t row, const std::vector<double>& values) {
    for (std::size_t k = 0; k < values.size(); ++k) all[row * info.depth + k] = static_cast<float>(values[k]);
  };
  if (found->embedding) {
    for (std::size_t row = 0; row < info.rows; ++row) embed(row, all.data() + row * info.depth);
  } else if (found->key_value != nullptr) {
    const std::size_t dim = setup_.shape.head_dim;
    for (std::size_t number = 0; number < setup_.shape.heads; ++number) {
      for (std::size_t r = 0; r < info.depth; ++r) {
        const std::vector<double> column = found->key_value->k_b.row(number * info.depth + r);
        for (std::size_t i = 0; i < dim; ++i)
          all[(number * 2 * dim + i) * info.depth + r] = static_cast<float>(column[i]);
      }
      for (std::size_t i = 0; i < dim; ++i)
        put(number * 2 * dim + dim + i, found->key_value->v_b.row(number * dim + i));
    }
  } else {
    const Piece& piece = found->pieces[0];
    for (std::size_t row = 0; row < info.rows; ++row)
      put(row, piece.matrix->row(piece.matrix->order().row(piece.piece, row)));
  }
  return all;
}

}  // namespace k3gate::decode
