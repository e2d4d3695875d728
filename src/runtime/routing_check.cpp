// SPDX-License-Identifier: Apache-2.0
#include "runtime/routing_check.h"

#include <algorithm>
#include <cmath>

#include "backends/backend.h"
#include "base/arena.h"
#include "base/dtype.h"
#include "base/math.h"
#include "formats/format.h"
#include "routing/router.h"
#include "runtime/input_check.h"
#include "runtime/rows.h"
#include "runtime/weights_read.h"

namespace motet {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32

/// Probabilistic bound on the rounding of a dot product of length n, relative to |w| |x|: lambda sqrt(n) u with lambda = 6
/// (Higham and Mary 2019, theorem 2.4: fails with probability below 2 exp(-18) per operation), and one for the bias and the result.
double dot_rounding(std::int64_t length) { return (6 * std::sqrt(static_cast<double>(length)) + 2) * kUnit; }

std::vector<double> row_norms(const WeightView& router, DType dtype) {
  const Format* format = find_format(dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16");
  std::vector<double> row(static_cast<std::size_t>(router.cols)), norms;
  for (std::int64_t n = 0; n < router.rows; ++n) {
    format->decode(router, n, 0, router.cols, row.data());
    double squares = 0;
    for (const double value : row) squares += value * value;
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

/// Routes one token of the truth after moving its logits.
class TrueRouter {
 public:
  TrueRouter(const LayerSpec& spec, const LayerWeights& weights)
      : spec_(spec),
        weights_(weights),
        selection_bias_(floats_of(weights.selection_bias)),
        scale_(floats_of(weights.per_expert_scale)),
        scratch_(static_cast<std::size_t>(route_scratch_floats(spec.experts + spec.router.zero_experts))),
        hash_(static_cast<std::size_t>(spec.top_k)),
        index_(hash_.size()),
        weight_(hash_.size()) {}

  void route(const float* logits, std::int64_t token_id) {
    const bool hashed = spec_.router.selection == RouterSelection::hash;
    for (std::int64_t k = 0; hashed && k < spec_.top_k; ++k)
      hash_[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(hash_expert(weights_, spec_.top_k, token_id, k));
    route_token(RouteArgs{.spec = &spec_.router,
                          .experts = spec_.experts,
                          .top_k = spec_.top_k,
                          .logits = logits,
                          .selection_bias = selection_bias_.empty() ? nullptr : selection_bias_.data(),
                          .per_expert_scale = scale_.empty() ? nullptr : scale_.data(),
                          .hash_experts = hashed ? hash_.data() : nullptr,
                          .scratch = scratch_.data(),
                          .index = index_.data(),
                          .weight = weight_.data()});
  }
  bool same_set(const std::int32_t* index) const {
    std::vector<std::int32_t> mine = index_, other(index, index + spec_.top_k);
    std::sort(mine.begin(), mine.end());
    std::sort(other.begin(), other.end());
    return mine == other;
  }
  /// Logits of the experts in `chosen` raised by their margins (times `sign`), all others lowered.
  std::vector<float> moved(const float* logits, const double* margin, const std::vector<std::int32_t>& chosen, double sign) const {
    const auto choices = static_cast<std::size_t>(spec_.experts + spec_.router.zero_experts);
    std::vector<float> result(choices);
    for (std::size_t e = 0; e < choices; ++e) {
      const bool in = std::find(chosen.begin(), chosen.end(), static_cast<std::int32_t>(e)) != chosen.end();
      result[e] = static_cast<float>(logits[e] + (in ? sign : -sign) * margin[e]);
    }
    return result;
  }
  const std::vector<std::int32_t>& index() const { return index_; }
  double weight_of(std::int32_t expert) const {
    const auto found = std::find(index_.begin(), index_.end(), expert);
    return found == index_.end() ? 0 : static_cast<double>(weight_[static_cast<std::size_t>(found - index_.begin())]);
  }

 private:
  const LayerSpec& spec_;
  const LayerWeights& weights_;
  std::vector<float> selection_bias_, scale_, scratch_;
  std::vector<std::int32_t> hash_, index_;
  std::vector<float> weight_;
};

/// Largest weight difference that logits moved by `margin` can make: every method's weight changes by at most twice the move,
/// relative to weights of at most scale (softmax, ratios of sigmoid or sqrt-softplus) or by the move itself (plain logits,
/// sigmoid).
double weight_bound(const LayerSpec& spec, const std::vector<float>& per_expert_scale, double margin) {
  double largest = std::abs(spec.router.scale_site == ScaleSite::weights ? spec.router.scale : 1);
  double expert_scale = 1;
  for (const float scale : per_expert_scale) expert_scale = std::max(expert_scale, static_cast<double>(std::abs(scale)));
  const double arithmetic =
      (static_cast<double>(spec.experts + spec.router.zero_experts) + 32) * kUnit;  // sums of the router, its exp
  return std::max(1.0, largest) * expert_scale * (2 * margin + arithmetic);
}

}  // namespace

LogitTruth true_logits(const Plan& reference_plan, const std::shared_ptr<const LayerWeights>& weights,
                       const ConstMatrix& hidden_states, Executor& executor) {
  const LayerSpec& spec = reference_plan.spec;
  const std::int64_t choices = spec.experts + spec.router.zero_experts;
  LogitTruth truth;
  truth.logits.resize(static_cast<std::size_t>(hidden_states.rows * choices));
  const std::unique_ptr<PreparedBackend> backend = find_backend("reference")->prepare(reference_plan, 0, weights, executor);
  const Area* area = reference_plan.area(AreaId::scratch);
  const Arena scratch(area == nullptr ? 0 : area->bytes, "the scratch of a check");
  backend->run_router(hidden_states, truth.logits.data(), choices, scratch.data(),
                      area == nullptr ? 0 : area->bytes / std::max(1, reference_plan.threads), executor);

  const std::vector<float> bias = floats_of(weights->router_bias);
  const std::vector<double> norms = row_norms(weights->router, spec.router.weight_dtype);
  truth.margin.resize(truth.logits.size());
  for (std::int64_t token = 0; token < hidden_states.rows; ++token) {
    double squares = 0;
    visit_row(hidden_states, token, [&](std::int64_t, float x) { squares += static_cast<double>(x) * x; });
    for (std::int64_t e = 0; e < choices; ++e) {
      const auto i = static_cast<std::size_t>(token * choices + e), expert = static_cast<std::size_t>(e);
      truth.margin[i] = dot_rounding(hidden_states.cols) * norms[expert] * std::sqrt(squares);
      if (!bias.empty()) {
        truth.logits[i] = truth.logits[i] + bias[expert];
        truth.margin[i] += 2 * kUnit * static_cast<double>(std::abs(bias[expert]));
      }
    }
  }
  return truth;
}

RoutingComparison compare_routing(const LayerSpec& spec, const LayerWeights& weights, const LogitTruth& truth,
                                  const std::int64_t* token_ids, const std::int32_t* index, const float* weight,
                                  const std::vector<bool>& skip) {
  const std::int64_t choices = spec.experts + spec.router.zero_experts;
  TrueRouter router(spec, weights);
  RoutingComparison result;
  double largest_margin = 0;
  for (std::int64_t token = 0; token < static_cast<std::int64_t>(skip.size()); ++token) {
    if (skip[static_cast<std::size_t>(token)]) continue;
    const float* logits = truth.logits.data() + token * choices;
    const std::int64_t token_id = token_ids == nullptr ? 0 : token_ids[token];
    const std::int32_t* chosen = index + token * spec.top_k;
    router.route(logits, token_id);
    const bool same = router.same_set(chosen);
    for (std::int64_t k = 0; same && k < spec.top_k; ++k)
      result.weights_abs =
          std::max(result.weights_abs, std::abs(static_cast<double>(weight[token * spec.top_k + k]) - router.weight_of(chosen[k])));
    if (truth.margin.empty()) {
      result.mismatches += !same;
      continue;
    }
    const double* margin = truth.margin.data() + token * choices;
    largest_margin = std::max(largest_margin, *std::max_element(margin, margin + choices));
    const std::vector<std::int32_t> own = router.index();
    router.route(router.moved(logits, margin, own, -1).data(), token_id);
    result.near_ties += !router.same_set(own.data());
    if (same) continue;
    router.route(router.moved(logits, margin, std::vector<std::int32_t>(chosen, chosen + spec.top_k), 1).data(), token_id);
    result.mismatches += !router.same_set(chosen);
  }
  result.weights_bound = weight_bound(spec, floats_of(weights.per_expert_scale), largest_margin);
  return result;
}

}  // namespace motet
