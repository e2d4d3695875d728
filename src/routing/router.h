// SPDX-License-Identifier: Apache-2.0
// Scores to choices: logits in, experts and weights out. fp32, ties to the lower index, dropped groups are -inf, the scale
// once. NaN logits rank below every number (then by lower index) and leave NaN in the weights they enter: a token with NaN
// hidden states gets valid ids and NaN weights, so that its own output is NaN and no other token's.
// Scores take their limits at infinite logits: softmax shares 1 among the +inf (or, when all are -inf, among all), sigmoid gives
// 0 and 1, sqrt_softplus 0 and +inf. Dividing by a sum that is then 0 or +inf gives NaN, as the formula does.
// Without a selection bias experts are chosen by logit: every score rises with it, and fp32 scores tie where they saturate.
// Thread-safe: one token's arrays are read and written, nothing else.
#pragma once

#include <cstdint>

#include "motet/spec.h"

namespace motet {

/// Requires 1 <= top_k <= experts + zero_experts; with groups > 1, experts divisible by groups and 1 <= groups_kept. Zero
/// experts belong to no group. When the kept groups hold fewer than top_k experts, dropped ones follow by lower index.
struct RouteArgs {
  const RouterSpec* spec = nullptr;
  std::int64_t experts = 0, top_k = 0;
  const float* logits = nullptr;             ///< [experts + zero_experts], soft cap not yet applied, logit bias already added
  const float* selection_bias = nullptr;     ///< [experts + zero_experts] or null
  const float* per_expert_scale = nullptr;   ///< [experts] or null
  const std::int32_t* hash_experts = nullptr;///< [top_k] ids in [0, experts): the table's row for this token, hash routing only
  float* scratch = nullptr;                  ///< route_scratch_floats(experts + zero_experts) floats
  std::int32_t* index = nullptr;             ///< [top_k] out, best first; in the table's order with hash routing
  float* weight = nullptr;                   ///< [top_k] out, with every factor the family's router puts on it
};

std::int64_t route_scratch_floats(std::int64_t experts_and_zero) noexcept;
/// Routes one token. noexcept, allocates nothing.
void route_token(const RouteArgs& args) noexcept;

}  // namespace motet
