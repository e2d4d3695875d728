// SPDX-License-Identifier: Apache-2.0
#include "comm/strategy.h"

namespace motet {

#define MOTET_STRATEGY(name) extern const StrategyTraits strategy_##name;
#include "comm/strategies.inc"
#undef MOTET_STRATEGY

const std::vector<const StrategyTraits*>& all_strategies() {
  static const std::vector<const StrategyTraits*> list = {
#define MOTET_STRATEGY(name) &strategy_##name,
#include "comm/strategies.inc"
#undef MOTET_STRATEGY
  };
  return list;
}

const StrategyTraits* find_strategy(std::string_view name) noexcept {
  for (const StrategyTraits* strategy : all_strategies()) {
    if (strategy->name == name) return strategy;
  }
  return nullptr;
}

}  // namespace motet
