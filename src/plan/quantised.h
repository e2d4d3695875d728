// SPDX-License-Identifier: Apache-2.0
// What a backend that quantises activations needs in the workspace: tensors with the layout of their scales as a type (L6).
#pragma once

#include <vector>

#include "plan/draft.h"

namespace motet {

/// A tensor of stage `experts` and the area that holds exactly its stored extents.
struct QuantisedTensor {
  AreaId area;
  TensorType type;
};
/// Codes and scales of both operands, and linear scales where the backend wants another order; empty when nothing is quantised.
std::vector<QuantisedTensor> quantised_tensors(const Draft& draft);

/// Most tiles of 128 rows that `rows` rows fill in all when they fall on `slots` slots in any way and each slot begins a tile.
std::int64_t most_row_tiles(std::int64_t rows, std::int64_t slots) noexcept;

}  // namespace motet
