// SPDX-License-Identifier: Apache-2.0
#include "comm/strategy.h"

namespace motet {

extern const StrategyTraits strategy_allreduce;
const StrategyTraits strategy_allreduce = {.name = "allreduce",
                                           .summary = "replicated tokens: every rank's sums to every rank, added in order of rank",
                                           .unit = RowUnit::none};

}  // namespace motet
