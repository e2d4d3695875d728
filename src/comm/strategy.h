// SPDX-License-Identifier: Apache-2.0
// Strategies: how rows of tokens get to the ranks of their experts, and how one routed sum per token comes back.
//
// One file src/comm/NAME.cpp and one line in strategies.inc; their traits are in plan/catalog.h, what they do in comm/exchange.h.
#pragma once

#include <string_view>
#include <vector>

#include "plan/catalog.h"

namespace motet {

/// All strategies, in the order of strategies.inc, which is the order of selection.
const std::vector<const StrategyTraits*>& all_strategies();

/// Null when there is no such name.
const StrategyTraits* find_strategy(std::string_view name) noexcept;

}  // namespace motet
