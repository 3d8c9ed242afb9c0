// Whether an engine computes what it should, before any of its speeds counts. No Python here.
#pragma once

#include <cstdint>
#include <string>

#include "check.hpp"
#include "shape.hpp"

namespace k3gate::decode {

// Fresh random weights, tokens and forced experts; some steps of each sequence and, where the setup has
// positions, a prefill of the same tokens. Logits and hidden states against float64, by root mean square;
// every stage of the last step by tight bounds, with every row. At reduced widths: float64 is slow. Without a
// trunk: the stages alone.
//
// `fault`: "", or a mistake to plant: expert_scale (one scale of an expert of the last layer twice what it
// should be), swapped_experts (two experts change places), decay_sign (decays of a layer with the other
// sign), output_gate (a gate of zeros), cache_row (a row of a cache is another one), lost_row (a row of
// activations is not sent to one owner), router_bias (some experts are always chosen). Throws
// std::invalid_argument for others, and where the setup has no such thing.
Verdict prove(const Setup& setup, std::uint64_t seed, const std::string& fault);

}  // namespace k3gate::decode
