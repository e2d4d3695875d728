// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "kernels/kernel.h"
#include "runtime/check_truth.h"
#include "runtime/rows.h"

namespace motet {
namespace {

/// Most that one rounding takes from an element, relative: the unit roundoff. Outputs may be dominated by one element.
double output_rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24; }

/// A level's promise is over many tokens; one token's share of it varies. Three times the promise above it for a single token,
/// falling as the root of their number (evidence: 30 to 60 single Gaussian fp32 tokens on each of six golden checkpoints, worst 2.9
/// times the promise). The derived bounds of fp32 sums and of quantised activations hold for one token as for many: nothing is
/// added to them.
double spread_of(const Plan& run, std::int64_t tokens) {
  if (run.recipe.arithmetic == name_of(KernelArithmetic::f32) || run.area(AreaId::permuted_codes) != nullptr) return 1;
  return 1 + 3 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, tokens)));
}

std::vector<float> values_of(const ConstMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    visit_row(matrix, row, [&](std::int64_t i, float value) { values[static_cast<std::size_t>(row * matrix.cols + i)] = value; });
  return values;
}

bool row_is_finite(const std::vector<float>& values, std::int64_t row, std::int64_t cols) {
  for (std::int64_t i = 0; i < cols; ++i)
    if (!std::isfinite(values[static_cast<std::size_t>(row * cols + i)])) return false;
  return true;
}

/// The same layer by the double-precision backend with fp32 in and out.
Plan reference_plan_of(const Plan& run, std::int64_t tokens) {
  Deployment deployment;
  deployment.tokens = std::max<std::int64_t>(1, tokens);
  deployment.chunk_tokens = run.deployment.chunk_tokens;
  deployment.input = DType::f32;
  deployment.wishes.backend = "reference";
  deployment.wishes.arithmetic = Arithmetic::exact;
  deployment.wishes.threads = run.threads;
  return plan(run.spec, deployment, run.environment).value();
}

struct Distance {
  double error_squares = 0, truth_squares = 0;
  std::int64_t compared = 0, not_finite_mismatches = 0;
};

/// Tokens whose truth is not finite count when the output is finite there, and are left out of the sums.
Distance distance_of(const std::vector<float>& truth, const std::vector<float>& output, std::int64_t tokens, std::int64_t cols) {
  Distance distance;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const bool finite = row_is_finite(truth, token, cols);
    if (!finite || !row_is_finite(output, token, cols)) {
      distance.not_finite_mismatches += finite || row_is_finite(output, token, cols);
      continue;
    }
    ++distance.compared;
    for (std::int64_t i = token * cols; i < (token + 1) * cols; ++i) {
      const double exact = truth[static_cast<std::size_t>(i)];
      const double error = output[static_cast<std::size_t>(i)] - exact;
      distance.error_squares += error * error;
      distance.truth_squares += exact * exact;
    }
  }
  return distance;
}

std::string sentence(const CheckReport& report, const Distance& distance, const RoutingComparison& routing) {
  std::string text = format_text("relative L2 error %.3g over %lld tokens, bound %.3g", report.relative_l2,
                                 static_cast<long long>(report.tokens), report.bound);
  if (distance.compared == 0 && report.given_tokens > 0) text += "; nothing was compared: no token is finite on both sides";
  if (distance.not_finite_mismatches > 0)
    text += format_text("; %lld tokens are finite on one side only", static_cast<long long>(distance.not_finite_mismatches));
  if (report.routing_mismatches > 0)
    text += format_text("; %lld tokens are routed to other experts than the reference's",
                        static_cast<long long>(report.routing_mismatches));
  if (report.weights_abs > routing.weights_bound)
    text += format_text("; routing weights are off by %.3g, bound %.3g", report.weights_abs, routing.weights_bound);
  return text + (report.ok ? ": ok" : ": outside its bound");
}

bool same_routing(const CheckRun& run, const std::int32_t* index, const float* weights) {
  return run.index.empty() || (std::equal(run.index.begin(), run.index.end(), index) &&
                               std::memcmp(run.weights.data(), weights, run.weights.size() * sizeof(float)) == 0);
}

}  // namespace

CheckTruth::CheckTruth(const Plan& run, std::shared_ptr<const LayerWeights> weights, std::vector<float> hidden_states,
                       std::int64_t tokens)
    : plan_(reference_plan_of(run, tokens)),
      weights_(std::move(weights)),
      hidden_states_(std::move(hidden_states)),
      tokens_(tokens),
      pool_(plan_.threads),
      layer_(Layer::create(plan_, weights_, {}, &pool_)) {}

const std::vector<float>& CheckTruth::output(const std::int32_t* index, const float* weights) {
  if (own_ && same_routing(*own_, index, weights)) return own_->output;
  const auto choices = static_cast<std::size_t>(tokens_ * plan_.spec.top_k);
  if (last_.index.size() == choices && last_.output.size() == hidden_states_.size() && same_routing(last_, index, weights))
    return last_.output;
  last_.index.assign(index, index + choices);
  last_.weights.assign(weights, weights + choices);
  last_.output.assign(hidden_states_.size(), 0);
  last_.status = layer_->forward({.hidden_states = input(), .router_logits = {}, .top_k_index = index, .top_k_weights = weights},
                                 {.output = {last_.output.data(), DType::f32, tokens_, plan_.spec.hidden}});
  if (!last_.status.ok()) throw Error(last_.status.code, std::string(last_.status.text()));
  return last_.output;
}

const CheckRun& CheckTruth::own() {
  if (!own_) own_ = run_tokens(*layer_, hidden_states_, 0, tokens_);
  if (!own_->status.ok()) throw Error(own_->status.code, std::string(own_->status.text()));
  return *own_;
}

const LogitTruth& CheckTruth::logits() {
  if (!logits_) logits_ = true_logits(plan_, weights_, input(), pool_);
  return *logits_;
}

double sums_bound(const Plan& run) noexcept {
  if (run.recipe.arithmetic != name_of(KernelArithmetic::f32)) return run.recipe.error_bound;
  // A running sum of n terms of random sign rounds n times, at the size of the sum so far: 2^-24 sqrt(n / 6) of the result (root
  // mean square). 8 leaves room for bodies that steepen errors and for terms that cancel.
  const LayerSpec& spec = run.spec;
  std::int64_t terms = spec.dispatch_width() + spec.intermediate + spec.top_k;
  if (spec.latent > 0) terms += spec.hidden + 2 * spec.latent;
  if (spec.shared.intermediate > 0) terms += spec.hidden + spec.shared.intermediate;
  const double wire = run.ranks.size() > 1 ? output_rounding(run.recipe.wire) : 0;  // of each row that comes back
  return std::min(run.recipe.error_bound, 8 * 0x1p-24 * std::sqrt(static_cast<double>(terms) / 6) + wire);
}

CheckReport check_forward(const Plan& run, const std::shared_ptr<const LayerWeights>& weights, const ForwardInput& input,
                          const ConstMatrix& output, const std::int32_t* top_k_index, const float* top_k_weights) {
  if (input.hidden_states.cols != run.spec.hidden)
    throw Error(ErrorCode::invalid_argument,
                "a check needs the forward's hidden states of [tokens, " + std::to_string(run.spec.hidden) + "], but they have " +
                    std::to_string(input.hidden_states.cols) + " columns; pass what forward was given");
  CheckTruth truth(run, weights, values_of(input.hidden_states), input.hidden_states.rows);
  return check_against(truth, run, input, output, top_k_index, top_k_weights);
}

CheckReport check_against(CheckTruth& truth, const Plan& run, const ForwardInput& input, const ConstMatrix& output,
                          const std::int32_t* top_k_index, const float* top_k_weights) {
  const std::int64_t tokens = truth.tokens(), hidden = run.spec.hidden;
  if ((tokens > 0 && (top_k_index == nullptr || top_k_weights == nullptr)) || output.rows != tokens || output.cols != hidden)
    throw Error(ErrorCode::invalid_argument,
                "a check needs the forward's output of [tokens, hidden] and its routing; pass what forward was given and gave");

  RoutingComparison routing;
  if (input.top_k_index == nullptr) {
    std::vector<bool> skip(static_cast<std::size_t>(tokens));
    for (std::int64_t token = 0; token < tokens; ++token)
      skip[static_cast<std::size_t>(token)] = !row_is_finite(truth.hidden_states(), token, hidden);
    LogitTruth given;
    if (input.router_logits.data != nullptr) given.logits = values_of(input.router_logits);
    routing = compare_routing(run.spec, *truth.weights(), input.router_logits.data != nullptr ? given : truth.logits(),
                              input.token_ids, top_k_index, top_k_weights, skip);
  }

  const Distance distance = distance_of(truth.output(top_k_index, top_k_weights), values_of(output), tokens, hidden);
  CheckReport report;
  report.given_tokens = tokens;
  report.tokens = distance.compared;
  report.relative_l2 = distance.error_squares == 0 ? 0 : std::sqrt(distance.error_squares / distance.truth_squares);
  report.bound = sums_bound(run) * spread_of(run, distance.compared) + output_rounding(output.dtype);
  report.routing_mismatches = routing.mismatches;
  report.near_ties = routing.near_ties;
  report.weights_abs = routing.weights_abs;
  report.ok = report.relative_l2 <= report.bound && (distance.compared > 0 || tokens == 0) && distance.not_finite_mismatches == 0 &&
              routing.mismatches == 0 && routing.weights_abs <= routing.weights_bound;
  report.text = sentence(report, distance, routing);
  return report;
}

}  // namespace motet
