// SPDX-License-Identifier: Apache-2.0
// What a forward is held to: the double-precision backend's answer for the same hidden states, and the bound that applies.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "motet/verify.h"
#include "runtime/check_runs.h"
#include "runtime/routing_check.h"

namespace motet {

/// The reference's answers for one input. It remembers the last, so that many ways that route alike cost one reference forward.
/// Used by one thread at a time; throws Error when the reference cannot run the layer.
class CheckTruth {
 public:
  CheckTruth(const Plan& run, std::shared_ptr<const LayerWeights> weights, std::vector<float> hidden_states, std::int64_t tokens);
  /// Output [tokens, hidden] for a given routing.
  const std::vector<float>& output(const std::int32_t* index, const float* weights);
  /// Output and routing when the reference routes itself (no hash routing).
  const CheckRun& own();
  /// The router's logits from the weights.
  const LogitTruth& logits();

  const std::vector<float>& hidden_states() const { return hidden_states_; }
  const std::shared_ptr<const LayerWeights>& weights() const { return weights_; }
  std::int64_t tokens() const { return tokens_; }

 private:
  ConstMatrix input() const { return {hidden_states_.data(), DType::f32, tokens_, plan_.spec.hidden}; }

  Plan plan_;
  std::shared_ptr<const LayerWeights> weights_;
  std::vector<float> hidden_states_;
  std::int64_t tokens_;
  ThreadPool pool_;
  std::unique_ptr<Layer> layer_;
  CheckRun last_;
  std::optional<CheckRun> own_;
  std::optional<LogitTruth> logits_;
};

/// check_forward against a truth that was made of the same hidden states.
CheckReport check_against(CheckTruth& truth, const Plan& run, const ForwardInput& input, const ConstMatrix& output,
                          const std::int32_t* top_k_index, const float* top_k_weights);

/// Largest relative L2 error before the output is rounded: the recipe's promise, or for fp32 sums what their length makes of the
/// unit roundoff when that is less, so that a kernel which wastes most of the promise is noticed.
double sums_bound(const Plan& run) noexcept;

}  // namespace motet
