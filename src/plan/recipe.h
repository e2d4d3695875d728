// SPDX-License-Identifier: Apache-2.0
// The numeric recipe (L14, L15): arithmetic, order of sums, every rounding, the site of the routing weight.
#pragma once

#include "plan/draft.h"

namespace motet {

Recipe make_recipe(const Draft& draft, Arithmetic wished);

/// Promised relative L2 error over all tokens, before the one rounding to the dtype of the output.
double error_bound_of(Arithmetic level, std::string_view kernel_arithmetic) noexcept;

/// Promise of a backend that rounds both operands of the routed experts by at most `step` of each element. Roundings of random sign
/// are step / sqrt(3) in root mean square at most; the one on the way into the body counts twice (a square, or a product of two
/// halves), the one behind it once: sqrt(4 + 1) of them (evidence: mxfp8, step 2^-4, on the check shapes: worst 0.051 of 0.081).
double quantised_error_bound(double step) noexcept;

}  // namespace motet
