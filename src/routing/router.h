// SPDX-License-Identifier: Apache-2.0
// Scores to choices: logits in, experts and weights out. fp32, ties to the lower index, dropped groups are -inf, the scale
// once. NaN logits rank below every number (then by lower index) and leave NaN in the weights they enter: a token with NaN
// hidden states gets valid ids and NaN weights, so that its own output is NaN and no other token's.
#pragma once

#include <cstdint>

#include "motet/spec.h"

namespace motet {

struct RouteArgs {
  const RouterSpec* spec = nullptr;
  std::int64_t experts = 0, top_k = 0;
  const float* logits = nullptr;             ///< [experts + zero_experts], soft cap not yet applied, logit bias already added
  const float* selection_bias = nullptr;     ///< [experts + zero_experts] or null
  const float* per_expert_scale = nullptr;   ///< [experts] or null
  const std::int32_t* hash_experts = nullptr;///< [top_k]: the table's row for this token, hash routing only
  float* scratch = nullptr;                  ///< route_scratch_floats(experts + zero_experts) floats
  std::int32_t* index = nullptr;             ///< [top_k] out, best first
  float* weight = nullptr;                   ///< [top_k] out, with every factor the family's router puts on it
};

std::int64_t route_scratch_floats(std::int64_t experts_and_zero) noexcept;
/// Routes one token. noexcept, allocates nothing.
void route_token(const RouteArgs& args) noexcept;

}  // namespace motet
