// SPDX-License-Identifier: Apache-2.0
// The case matrix of `motet check`: numerics of every way x format x shape against the reference, then the laws.
#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/text.h"
#include "motet/verify.h"
#include "runtime/catalog.h"
#include "runtime/check_truth.h"
#include "runtime/law_checks.h"

namespace motet {
namespace {

constexpr std::int64_t kTokenCounts[] = {0, 1, 17};

bool matches(const std::string& name, const std::string& filter) {
  if (filter.empty()) return true;
  if (filter.find_first_of("*?[") != std::string::npos) return fnmatch(filter.c_str(), name.c_str(), 0) == 0;
  return name.find(filter) != std::string::npos;
}

class CheckRunner {
 public:
  CheckRunner(const CheckWishes& wishes, const Environment& environment) : wishes_(wishes), environment_(environment) {}

  /// Whether the filter lets the case in and nobody asked to stop.
  bool wants(const std::string& name) {
    if (stopped_ || !matches(name, wishes_.filter)) return false;
    stopped_ = wishes_.stop != nullptr && wishes_.stop();
    return !stopped_;
  }

  /// Runs one wanted case. `body` returns what is wrong, or nothing, and may write the detail.
  template <class Body>
  void add(const std::string& name, const std::optional<std::string>& skipped, Body&& body) {
    CheckCase result;
    result.name = name;
    if (skipped) {
      result.skipped = result.passed = true;
      result.detail = *skipped;
      cases_.push_back(result);
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      const std::optional<std::string> failure = body(result.detail);
      result.passed = !failure;
      if (failure) result.detail = *failure;
    } catch (const Error& error) {
      result.detail = error.what();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    cases_.push_back(std::move(result));
  }

  const std::shared_ptr<const LayerWeights>& weights_of(const std::string& key, const LayerSpec& spec) {
    if (key != key_) {
      weights_ = synthetic_weights(spec, wishes_.seed);
      truths_.clear();
      key_ = key;
    }
    return weights_;
  }

  /// The reference's answer for the weights in use, made once and kept for all ways.
  CheckTruth& truth_of(const Plan& run, std::int64_t tokens) {
    std::unique_ptr<CheckTruth>& truth = truths_[tokens];
    if (truth == nullptr)
      truth = std::make_unique<CheckTruth>(run, weights_, synthetic_hidden_states(tokens, run.spec.hidden, wishes_.seed), tokens);
    return *truth;
  }

  const CheckWishes& wishes() const { return wishes_; }
  const Environment& environment() const { return environment_; }
  std::vector<CheckCase> take() { return std::move(cases_); }

 private:
  const CheckWishes& wishes_;
  const Environment& environment_;
  std::string key_;  // the weights in use; one set at a time is kept
  std::shared_ptr<const LayerWeights> weights_;
  std::map<std::int64_t, std::unique_ptr<CheckTruth>> truths_;  // of these weights, by tokens
  std::vector<CheckCase> cases_;
  bool stopped_ = false;
};

/// Why a way cannot run on this machine: its target is not there. Anything else is a failure of the case.
std::optional<std::string> target_missing(const CheckWay& way, const Environment& environment) {
  for (const TargetFacts& target : environment.targets)
    if (target.name == way.target && !(target.compiled && target.usable))
      return "target " + target.name + " is not usable here: " + target.reason;
  return std::nullopt;
}

/// A forward that is handed the routing of another.
CheckRun run_given(Layer& layer, const std::vector<float>& hidden_states, const CheckRun& routing) {
  const LayerSpec& spec = layer.plan().spec;
  const auto tokens = static_cast<std::int64_t>(routing.index.size()) / spec.top_k;
  CheckRun run{
      .status = {}, .output = std::vector<float>(hidden_states.size()), .index = routing.index, .weights = routing.weights};
  run.status = layer.forward({.hidden_states = {hidden_states.data(), DType::f32, tokens, spec.hidden},
                              .router_logits = {},
                              .top_k_index = routing.index.data(),
                              .top_k_weights = routing.weights.data()},
                             {.output = {run.output.data(), DType::f32, tokens, spec.hidden}});
  return run;
}

/// One forward of a way: its own routing against the reference's logits, its output for the reference's routing against the
/// reference's output, and its output for its own routing is the one it gives when handed that routing.
std::optional<std::string> check_tokens(CheckTruth& truth, Layer& layer, CheckReport& report) {
  const std::int64_t tokens = truth.tokens(), hidden = layer.plan().spec.hidden;
  const CheckRun run = run_tokens(layer, truth.hidden_states(), 0, tokens);
  if (!run.status.ok()) return std::string(run.status.text());
  ForwardInput input{.hidden_states = {truth.hidden_states().data(), DType::f32, tokens, hidden}, .router_logits = {}};
  const CheckRun& reference = truth.own();
  if (run.index == reference.index && same_bits(run.weights, reference.weights)) {
    report = check_against(truth, layer.plan(), input, {run.output.data(), DType::f32, tokens, hidden}, run.index.data(),
                           run.weights.data());
    return report.ok ? std::nullopt : std::optional(report.text);
  }
  const CheckRun again = run_given(layer, truth.hidden_states(), run), given = run_given(layer, truth.hidden_states(), reference);
  if (!again.status.ok()) return std::string(again.status.text());
  if (!given.status.ok()) return std::string(given.status.text());
  if (!same_bits(again.output, run.output)) return "the output has other bits when the same routing is given";
  const RoutingComparison routing = compare_routing(layer.plan().spec, *truth.weights(), truth.logits(), nullptr, run.index.data(),
                                                    run.weights.data(), std::vector<bool>(static_cast<std::size_t>(tokens)));
  if (routing.mismatches > 0)
    return format_text("%lld tokens are routed to other experts than the reference's", static_cast<long long>(routing.mismatches));
  if (routing.weights_abs > routing.weights_bound)
    return format_text("routing weights are off by %.3g, bound %.3g", routing.weights_abs, routing.weights_bound);
  input.top_k_index = reference.index.data();
  input.top_k_weights = reference.weights.data();
  report = check_against(truth, layer.plan(), input, {given.output.data(), DType::f32, tokens, hidden}, reference.index.data(),
                         reference.weights.data());
  return report.ok ? std::nullopt : std::optional(report.text);
}

std::optional<std::string> check_numerics(CheckRunner& runner, const LayerSpec& spec, const std::string& key, const CheckWay& way,
                                          std::string& detail) {
  const std::int64_t most = *std::max_element(std::begin(kTokenCounts), std::end(kTokenCounts));
  const std::shared_ptr<const LayerWeights>& weights = runner.weights_of(key, spec);
  const std::unique_ptr<Layer> layer = Layer::create(plan_way(spec, way, most, runner.environment()).value(), weights);
  CheckReport worst;
  for (const std::int64_t tokens : kTokenCounts) {
    CheckReport report;
    if (const auto failure = check_tokens(runner.truth_of(layer->plan(), tokens), *layer, report))
      return format_text("%lld tokens: ", static_cast<long long>(tokens)) + *failure;
    if (report.relative_l2 >= worst.relative_l2) worst = report;
  }
  detail = worst.text;
  return std::nullopt;
}

std::optional<LayerSpec> in_format(const LayerSpec& spec, const FormatFacts& facts) {
  for (const std::int64_t reduction : {spec.dispatch_width(), spec.intermediate})
    if (reduction % facts.values_per_block != 0) return std::nullopt;
  return with_format(spec, std::string(facts.name));
}

void add_shape(CheckRunner& runner, const NamedShape& shape, const FormatFacts& facts) {
  const std::optional<LayerSpec> spec = in_format(shape.spec, facts);
  if (!spec) return;  // such a layer cannot exist: its codes would not fill whole blocks
  const std::string key = std::string(facts.name) + "/" + shape.name;
  for (const CheckWay& way : check_ways(runner.environment())) {
    if (way.backend == "reference") continue;  // it is what the others are held to
    const std::string name = "numerics/" + way.name() + "/" + key;
    if (!runner.wants(name)) continue;
    runner.add(name, target_missing(way, runner.environment()),
               [&](std::string& detail) { return check_numerics(runner, *spec, key, way, detail); });
  }
}

void add_laws(CheckRunner& runner, const NamedShape& shape) {
  const std::string format = shape.name == "hidden-2880" ? "mxfp4" : "bf16";
  const LayerSpec spec = with_format(shape.spec, format);
  const std::string key = format + "/" + shape.name;
  for (const CheckWay& way : check_ways(runner.environment())) {
    for (const LawCheck& law : law_checks()) {
      const std::string name = std::string(law.law) + "." + std::string(law.name) + "/" + way.name() + "/" + key;
      if (!runner.wants(name)) continue;
      std::optional<std::string> skipped = target_missing(way, runner.environment());
      const LawSubject subject{spec, skipped ? nullptr : runner.weights_of(key, spec), way, runner.environment(),
                               runner.wishes().seed};
      if (!skipped) skipped = law.exempt(subject);
      runner.add(name, skipped, [&](std::string& detail) {
        detail = "holds";
        return law.check(subject);
      });
    }
  }
}

}  // namespace

std::vector<CheckCase> run_checks(const CheckWishes& wishes) {
  const Environment environment = Environment::probe();
  CheckRunner runner(wishes, environment);
  for (const NamedShape& shape : check_shapes())
    for (const FormatFacts& facts : catalog().formats) add_shape(runner, shape, facts);
  for (const NamedShape& shape : check_shapes()) add_laws(runner, shape);
  return runner.take();
}

}  // namespace motet
