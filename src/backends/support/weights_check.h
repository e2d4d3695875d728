// SPDX-License-Identifier: Apache-2.0
// What every backend checks before it prepares: the weights are those of the plan, and the plan is one this build can run.
#pragma once

#include <string>

#include "formats/layer_weights.h"
#include "motet/plan.h"

namespace motet {

/// The first field in which the specs differ with both values, such as "gate_up.format: plan 'mxfp4', weights 'bf16'"; "" when
/// equal.
std::string first_difference(const LayerSpec& plan, const LayerSpec& weights);

/// Throws Error: wrong_shape when `weights` is not of the plan's layer (names the first field that differs, or the matrix whose
/// extents are not the spec's), not_supported when the plan needs more than one rank.
void check_weights(const Plan& plan, const LayerWeights& weights);

}  // namespace motet
