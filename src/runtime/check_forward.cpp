// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/text.h"
#include "base/thread_pool.h"
#include "motet/verify.h"
#include "runtime/routing_check.h"
#include "runtime/rows.h"

namespace motet {
namespace {

/// Root mean square of the relative error of one rounding, at the low end of a binade: u / sqrt(3), u the unit roundoff.
double output_rounding(DType dtype) {
  const double unit = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
  return unit / std::sqrt(3.0);
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
  deployment.input = DType::f32;
  deployment.wishes.backend = "reference";
  deployment.wishes.arithmetic = Arithmetic::exact;
  deployment.wishes.threads = run.threads;
  return plan(run.spec, deployment, run.environment).value();
}

struct Distance {
  double error_squares = 0, truth_squares = 0;
  std::int64_t not_finite_mismatches = 0;
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
  if (distance.not_finite_mismatches > 0)
    text += format_text("; %lld tokens are finite on one side only", static_cast<long long>(distance.not_finite_mismatches));
  if (report.routing_mismatches > 0)
    text += format_text("; %lld tokens are routed to other experts than the reference's",
                        static_cast<long long>(report.routing_mismatches));
  if (report.weights_abs > routing.weights_bound)
    text += format_text("; routing weights are off by %.3g, bound %.3g", report.weights_abs, routing.weights_bound);
  return text + (report.ok ? ": ok" : ": outside its bound");
}

}  // namespace

CheckReport check_forward(const Plan& run, const std::shared_ptr<const LayerWeights>& weights, const ForwardInput& input,
                          const ConstMatrix& output, const std::int32_t* top_k_index, const float* top_k_weights) {
  const std::int64_t tokens = input.hidden_states.rows, hidden = run.spec.hidden;
  if ((tokens > 0 && (top_k_index == nullptr || top_k_weights == nullptr)) || output.rows != tokens || output.cols != hidden ||
      input.hidden_states.cols != hidden)
    throw Error(ErrorCode::invalid_argument,
                "a check needs the forward's output of [tokens, hidden] and its routing; pass what forward was given and gave");

  const Plan reference = reference_plan_of(run, tokens);
  const std::vector<float> hidden_states = values_of(input.hidden_states);
  const ConstMatrix exact_input{hidden_states.data(), DType::f32, tokens, hidden};
  std::vector<float> truth(hidden_states.size());
  ThreadPool pool(reference.threads);
  {
    const std::unique_ptr<Layer> layer = Layer::create(reference, weights, {}, &pool);
    const RunStatus status = layer->forward(
        {.hidden_states = exact_input, .router_logits = {}, .top_k_index = top_k_index, .top_k_weights = top_k_weights},
        {.output = {truth.data(), DType::f32, tokens, hidden}});
    if (!status.ok()) throw Error(status.code, std::string(status.text()));
  }

  RoutingComparison routing;
  if (input.top_k_index == nullptr) {
    std::vector<bool> skip(static_cast<std::size_t>(tokens));
    for (std::int64_t token = 0; token < tokens; ++token)
      skip[static_cast<std::size_t>(token)] = !row_is_finite(hidden_states, token, hidden);
    LogitTruth logits;
    if (input.router_logits.data != nullptr)
      logits.logits = values_of(input.router_logits);
    else
      logits = true_logits(reference, weights, exact_input, pool);
    routing = compare_routing(run.spec, *weights, logits, input.token_ids, top_k_index, top_k_weights, skip);
  }

  const Distance distance = distance_of(truth, values_of(output), tokens, hidden);
  CheckReport report;
  report.tokens = tokens;
  report.relative_l2 = distance.error_squares == 0 ? 0 : std::sqrt(distance.error_squares / distance.truth_squares);
  report.bound = run.recipe.error_bound + output_rounding(output.dtype);
  report.routing_mismatches = routing.mismatches;
  report.near_ties = routing.near_ties;
  report.weights_abs = routing.weights_abs;
  report.ok = report.relative_l2 <= report.bound && distance.not_finite_mismatches == 0 && routing.mismatches == 0 &&
              routing.weights_abs <= routing.weights_bound;
  report.text = sentence(report, distance, routing);
  return report;
}

}  // namespace motet
