// SPDX-License-Identifier: Apache-2.0
// Everything that forward refuses, checked before any work is done. Allocates nothing.
#pragma once

#include "formats/layer_weights.h"
#include "motet/layer.h"
#include "runtime/extents.h"

namespace motet {

/// The input and output against the plan: counts, shapes, dtypes, ids in range and once per token.
/// tokens_exceed_plan | wrong_shape | wrong_dtype | id_out_of_range | duplicate_id | invalid_argument.
RunStatus check_forward_arguments(const Plan& plan, const Extents& extents, const LayerWeights& weights, const ForwardInput& input,
                                  const ForwardOutput& output) noexcept;

/// Expert `k` of the hash table's row for a token id. Requires the id to be in the table.
std::int64_t hash_expert(const LayerWeights& weights, std::int64_t top_k, std::int64_t token_id, std::int64_t k) noexcept;

}  // namespace motet
