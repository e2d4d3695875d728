// SPDX-License-Identifier: Apache-2.0
// Refusals that spec and deployment earn on their own, before any backend is asked (L11, L17).
#pragma once

#include <vector>

#include "plan/catalog.h"

namespace motet {

/// Largest tp * ep: the plan holds a slice for each rank.
inline constexpr std::int64_t kMaxRanks = 4096;

/// Every rule that is broken. When the answer is empty, all later products of valid extents fit with room to spare.
std::vector<Refusal> check_inputs(const LayerSpec& spec, const Deployment& deployment, const Catalog& catalog);

}  // namespace motet
