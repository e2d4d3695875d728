// SPDX-License-Identifier: Apache-2.0
// The token-wise steps of the plan's tail (L5), in the order that the plan gives. Projections between them are the backend's.
#pragma once

#include <cstdint>
#include <span>

#include "motet/plan.h"

namespace motet {

/// What the steps read and write. `value` is the running result, fp32 [tokens, width], contiguous, changed in place.
struct TailArgs {
  float* value = nullptr;
  std::int64_t width = 0;
  float routed_scale = 1;              ///< TailOp::scale
  const float* norm_weight = nullptr;  ///< [width], TailOp::latent_norm
  float norm_epsilon = 0;
  const float* shared = nullptr;         ///< fp32 [tokens, width], TailOp::add_shared
  const float* shared_gate = nullptr;    ///< [hidden] or null: the shared row is multiplied by sigmoid(gate . x)
  ConstMatrix hidden_states;             ///< as the caller gave them
  const std::int32_t* expert = nullptr;  ///< [tokens, top_k]
  const float* weight = nullptr;         ///< [tokens, top_k]
  std::int64_t experts = 0, top_k = 0;
  ZeroExpertKind zero_expert_kind = ZeroExpertKind::none;
  Matrix output;  ///< TailOp::round
};

/// Applies `steps` to tokens [begin, end). `truncate` changes nothing here: finalize reads true widths only. Requires that no step
/// is latent_out or reduce.
void run_tail_steps(const TailArgs& args, std::span<const TailStep> steps, std::int64_t begin, std::int64_t end) noexcept;

/// sigmoid(gate . x) of one token: fp32, sixteen partial sums over i mod 16, then added in ascending order.
float shared_gate_value(const float* gate, const ConstMatrix& hidden_states, std::int64_t token) noexcept;

}  // namespace motet
