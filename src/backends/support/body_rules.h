// SPDX-License-Identifier: Apache-2.0
// Which expert bodies exist with and without a gate matrix.
#pragma once

#include <optional>
#include <string>

#include "motet/plan.h"

namespace motet {

/// relu2 reads one matrix; silu and gelu_tanh exist with and without a gate; all others need one.
inline std::optional<Refusal> refuse_body(const Activation& activation, std::string_view where) {
  const bool needs_gate = activation.kind != ActivationKind::silu && activation.kind != ActivationKind::gelu_tanh &&
                          activation.kind != ActivationKind::relu2;
  if (activation.gated ? activation.kind != ActivationKind::relu2 : !needs_gate) return std::nullopt;
  const std::string rule = activation.gated ? "the body relu2 reads the up matrix alone" : "this body needs a gate matrix";
  const std::string given =
      std::string(where) + " " + std::string(name_of(activation.kind)) + (activation.gated ? " with a gate" : " without a gate");
  return Refusal{"activation_not_built", rule, given,
                 activation.gated ? "relu2 without a gate" : "a gate matrix, or silu, gelu_tanh, relu2"};
}

/// The wish that no backend of this build answers.
inline std::optional<Refusal> refuse_arithmetic(Arithmetic wished) {
  if (wished != Arithmetic::fast) return std::nullopt;
  return Refusal{"arithmetic_not_built", "activations of less than bf16 accuracy are not built", "arithmetic fast",
                 "arithmetic bf16 or exact"};
}

}  // namespace motet
