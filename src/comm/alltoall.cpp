// SPDX-License-Identifier: Apache-2.0
#include "comm/strategy.h"

namespace motet {

extern const StrategyTraits strategy_alltoall;
const StrategyTraits strategy_alltoall = {.name = "alltoall",
                                          .summary = "a token once to each rank of its experts, their weighted sum back",
                                          .unit = RowUnit::token_rank};

}  // namespace motet
