// SPDX-License-Identifier: Apache-2.0
// Strategies: how rows of tokens get to the ranks of their experts, and how one routed sum per token comes back.
//
// Two questions tell them apart: what a row on the wire stands for, and who multiplies by the routing weight. The rest follows:
//   whole_batch   every token to every rank            sums of a rank's experts come back, added in order of rank
//   token_rank    a token once to each rank it needs    the same
//   token_expert  a token once for each choice          rows of experts come back, added in order of k: with an fp32 wire the bits
//   of one rank
#pragma once

#include <string_view>
#include <vector>

#include "motet/spec.h"

namespace motet {

enum class RowUnit { whole_batch, token_rank, token_expert };

struct StrategyTraits {
  std::string_view name, summary;
  RowUnit unit = RowUnit::token_rank;
  /// finalize: on the expert's rank, before the sum. combine: the rank of the token multiplies the rows that come back.
  WeightSite weight_site = WeightSite::finalize;
};

/// All strategies, in the order of strategies.inc, which is the order of selection.
const std::vector<const StrategyTraits*>& all_strategies();

/// Null when there is no such name.
const StrategyTraits* find_strategy(std::string_view name) noexcept;

}  // namespace motet
