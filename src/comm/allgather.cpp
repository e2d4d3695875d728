// SPDX-License-Identifier: Apache-2.0
#include "comm/strategy.h"

namespace motet {

extern const StrategyTraits strategy_allgather;
const StrategyTraits strategy_allgather = {
    .name = "allgather", .summary = "every token to every rank, weighted sums back", .unit = RowUnit::whole_batch};

}  // namespace motet
