// SPDX-License-Identifier: Apache-2.0
// The numeric recipe (L14, L15): arithmetic, order of sums, every rounding, the site of the routing weight.
#pragma once

#include "plan/draft.h"

namespace motet {

Recipe make_recipe(const Draft& draft, Arithmetic wished);

/// Promised relative L2 error over all tokens, before the one rounding to the dtype of the output.
double error_bound_of(Arithmetic level, std::string_view kernel_arithmetic) noexcept;

}  // namespace motet
