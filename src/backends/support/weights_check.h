// SPDX-License-Identifier: Apache-2.0
// What every backend checks before it prepares: the weights are those of the plan, and the plan is one this build can run.
#pragma once

#include "formats/layer_weights.h"
#include "motet/plan.h"

namespace motet {

/// Throws Error: wrong_shape when `weights` is not of the plan's layer (names the first field that differs, or the matrix whose
/// extents are not the spec's), not_supported when the plan needs more than one rank.
void check_weights(const Plan& plan, const LayerWeights& weights);

}  // namespace motet
