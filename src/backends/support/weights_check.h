// SPDX-License-Identifier: Apache-2.0
// What every backend checks before it prepares: the weights are those of the plan.
#pragma once

#include "formats/layer_weights.h"
#include "motet/plan.h"

namespace motet {

/// Throws Error(wrong_shape) when `weights` is not that rank's part of the plan's layer: names the first field that differs, or the
/// matrix whose extents are not the spec's.
void check_weights(const Plan& plan, std::int64_t rank, const LayerWeights& weights);
/// The same for the whole layer.
void check_whole_weights(const Plan& plan, const LayerWeights& weights);

}  // namespace motet
