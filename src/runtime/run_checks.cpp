// SPDX-License-Identifier: Apache-2.0
// The case matrix of `motet check`: numerics of every way x format x shape against the reference, then the laws.
#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/text.h"
#include "motet/verify.h"
#include "runtime/catalog.h"
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

  /// Runs one case unless the filter leaves it out. `body` returns what is wrong, or nothing, and may write the detail.
  template <class Body>
  void add(const std::string& name, const std::optional<std::string>& skipped, Body&& body) {
    if (!matches(name, wishes_.filter)) return;
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
      key_ = key;
    }
    return weights_;
  }

  const CheckWishes& wishes() const { return wishes_; }
  const Environment& environment() const { return environment_; }
  std::vector<CheckCase> take() { return std::move(cases_); }

 private:
  const CheckWishes& wishes_;
  const Environment& environment_;
  std::string key_;  // the weights in use; one set at a time is kept
  std::shared_ptr<const LayerWeights> weights_;
  std::vector<CheckCase> cases_;
};

/// Why a way cannot run on this machine: its target is not there. Anything else is a failure of the case.
std::optional<std::string> target_missing(const CheckWay& way, const Environment& environment) {
  for (const TargetFacts& target : environment.targets)
    if (target.name == way.target && !(target.compiled && target.usable))
      return "target " + target.name + " is not usable here: " + target.reason;
  return std::nullopt;
}

std::optional<std::string> check_numerics(const LayerSpec& spec, const std::shared_ptr<const LayerWeights>& weights,
                                          const CheckWay& way, const Environment& environment, std::uint64_t seed,
                                          std::string& detail) {
  const std::int64_t most = *std::max_element(std::begin(kTokenCounts), std::end(kTokenCounts));
  const std::unique_ptr<Layer> layer = Layer::create(plan_way(spec, way, most, environment).value(), weights);
  const std::vector<float> hidden_states = synthetic_hidden_states(most, spec.hidden, seed);
  CheckReport worst;
  for (const std::int64_t tokens : kTokenCounts) {
    const CheckRun run = run_tokens(*layer, hidden_states, 0, tokens);
    if (!run.status.ok()) return format_text("%lld tokens: ", static_cast<long long>(tokens)) + std::string(run.status.text());
    const ForwardInput input{.hidden_states = {hidden_states.data(), DType::f32, tokens, spec.hidden}, .router_logits = {}};
    const CheckReport report = check_forward(layer->plan(), weights, input, {run.output.data(), DType::f32, tokens, spec.hidden},
                                             run.index.data(), run.weights.data());
    if (!report.ok) return report.text;
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
    runner.add("numerics/" + way.name() + "/" + key, target_missing(way, runner.environment()), [&](std::string& detail) {
      return check_numerics(*spec, runner.weights_of(key, *spec), way, runner.environment(), runner.wishes().seed, detail);
    });
  }
}

void add_laws(CheckRunner& runner, const NamedShape& shape) {
  const std::string format = shape.name == "hidden-2880" ? "mxfp4" : "bf16";
  const LayerSpec spec = with_format(shape.spec, format);
  const std::string key = format + "/" + shape.name;
  for (const CheckWay& way : check_ways(runner.environment())) {
    for (const LawCheck& law : law_checks()) {
      const std::string name = std::string(law.law) + "." + std::string(law.name) + "/" + way.name() + "/" + key;
      if (!matches(name, runner.wishes().filter)) continue;
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
