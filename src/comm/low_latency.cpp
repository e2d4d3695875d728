// SPDX-License-Identifier: Apache-2.0
#include "comm/strategy.h"

namespace motet {

extern const StrategyTraits strategy_low_latency;
const StrategyTraits strategy_low_latency = {
    .name = "low_latency",
    .summary = "a token once for each of its experts, rows back as they are, weighed and summed where the token is",
    .unit = RowUnit::token_expert,
    .weight_site = WeightSite::combine};

}  // namespace motet
