// SPDX-License-Identifier: Apache-2.0
// The wish that no backend of this build answers.
#pragma once

#include <optional>

#include "motet/plan.h"

namespace motet {

inline std::optional<Refusal> refuse_arithmetic(Arithmetic wished) {
  if (wished != Arithmetic::fast) return std::nullopt;
  return Refusal{"arithmetic_not_built", "activations of less than bf16 accuracy are not built", "arithmetic fast",
                 "arithmetic bf16 or exact"};
}

}  // namespace motet
