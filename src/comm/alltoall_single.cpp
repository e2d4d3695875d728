// SPDX-License-Identifier: Apache-2.0
#include "comm/strategy.h"

namespace motet {

extern const StrategyTraits strategy_alltoall_single;
const StrategyTraits strategy_alltoall_single = {
    .name = "alltoall_single",
    .summary =
        "a token once for each of its experts, weighted rows back, one sum in order of k: with an fp32 wire the bits of one rank",
    .unit = RowUnit::token_expert};

}  // namespace motet
