// SPDX-License-Identifier: Apache-2.0
// Whether a run's routing is the one that logits in double precision give, up to choices that rounding of the logits decides.
#pragma once

#include <memory>
#include <vector>

#include "formats/layer_weights.h"
#include "motet/executor.h"
#include "motet/plan.h"

namespace motet {

/// Logits of every token and how far rounding may have moved each of the run's.
struct LogitTruth {
  std::vector<float> logits;   ///< [tokens, choices], bias added
  std::vector<double> margin;  ///< [tokens, choices]; empty = the run was given these very logits
};
/// Logits by the double-precision backend from fp32 hidden states [tokens, hidden]. Throws Error.
LogitTruth true_logits(const Plan& reference_plan, const std::shared_ptr<const LayerWeights>& weights,
                       const ConstMatrix& hidden_states, Executor& executor);

struct RoutingComparison {
  std::int64_t mismatches = 0;  ///< tokens whose set is not that of the truth, nor one that the margin allows
  std::int64_t near_ties = 0;   ///< tokens whose set the margin can change
  double weights_abs = 0;       ///< largest |weight - true weight| over tokens whose sets agree
  double weights_bound = 0;     ///< what rounding of logits and of the router's own arithmetic allows
};
/// Tokens for which `skip` is true (hidden states that are not finite) are left out.
RoutingComparison compare_routing(const LayerSpec& spec, const LayerWeights& weights, const LogitTruth& truth,
                                  const std::int64_t* token_ids, const std::int32_t* index, const float* weight,
                                  const std::vector<bool>& skip);

}  // namespace motet
