// SPDX-License-Identifier: Apache-2.0
// One rank's part of a layer's weights: views of its experts and of its rows and columns of them. Nothing is copied.
#pragma once

#include <memory>

#include "formats/layer_weights.h"
#include "motet/plan.h"

namespace motet {

/// The weights as spec_of_rank describes them; keeps `whole` alive. `whole` itself when the plan has one rank. Throws
/// Error(wrong_shape) when they are not the plan's layer.
std::shared_ptr<const LayerWeights> weights_of_rank(const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> whole);

}  // namespace motet
