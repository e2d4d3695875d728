// SPDX-License-Identifier: Apache-2.0
// Which bytes of the files one rank of a plan reads. Pure.
#pragma once

#include <vector>

#include "checkpoint/resolve.h"
#include "motet/plan.h"

namespace motet {

/// Ranges of all tensors of the layer that `slice` touches: its experts and its slice of the intermediate dimension; router,
/// selection bias, shared gate and latent projections whole. A range of rows that lie one after another is one run.
std::vector<ByteRange> ranges_of(const StoredLayer& layer, const TensorTable& table, const RankSlice& slice);

}  // namespace motet
