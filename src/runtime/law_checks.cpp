// SPDX-License-Identifier: Apache-2.0
#include "runtime/law_checks.h"

#include "base/text.h"
#include "motet/verify.h"
#include "runtime/layer_impl.h"

namespace motet {
namespace {

using Outcome = std::optional<std::string>;
constexpr std::int64_t kTokens = 13;  // odd, and more than any `few` kernel takes

std::unique_ptr<Layer> layer_of(const LawSubject& subject, const CheckWay& way, const Hooks& hooks = {}, bool poison = false) {
  return create_layer(plan_way(subject.spec, way, kTokens, subject.environment).value(), subject.weights, hooks, nullptr,
                      {.poison = poison});
}

std::vector<float> inputs_of(const LawSubject& subject) {
  return synthetic_hidden_states(kTokens, subject.spec.hidden, subject.seed);
}

/// Runs all tokens; the outcome holds the failure of the forward itself.
Outcome run_all(Layer& layer, const LawSubject& subject, CheckRun& run) {
  run = run_tokens(layer, inputs_of(subject), 0, kTokens);
  if (!run.status.ok()) return "forward failed: " + std::string(run.status.text());
  return std::nullopt;
}

Outcome compare_bits(const CheckRun& one, const CheckRun& other, const char* what) {
  for (std::size_t i = 0; i < one.output.size(); ++i)
    if (!same_bits({one.output[i]}, {other.output[i]}))
      return format_text("%s: output element %zu is %.9g on one side and %.9g on the other", what, i,
                         static_cast<double>(one.output[i]), static_cast<double>(other.output[i]));
  if (one.index != other.index || !same_bits(one.weights, other.weights)) return std::string(what) + ": the routing differs";
  return std::nullopt;
}

Outcome poison_changes_nothing(const LawSubject& subject) {
  CheckRun clean, poisoned;
  const auto clean_layer = layer_of(subject, subject.way), poisoned_layer = layer_of(subject, subject.way, {}, true);
  if (Outcome failure = run_all(*clean_layer, subject, clean)) return failure;
  if (Outcome failure = run_all(*poisoned_layer, subject, poisoned)) return failure;
  return compare_bits(clean, poisoned, "poisoned workspace");
}

Outcome zero_tokens_run(const LawSubject& subject) {
  const auto layer = layer_of(subject, subject.way, {}, true);
  const CheckRun run = run_tokens(*layer, {}, 0, 0);
  if (!run.status.ok()) return "forward of zero tokens failed: " + std::string(run.status.text());
  if (layer->stats().rows != 0 || layer->stats().weight_bytes != 0) return "zero tokens were said to have rows or to read weights";
  return std::nullopt;
}

Outcome identity_hook_is_builtin(const LawSubject& subject) {
  CheckWay hooked_way = subject.way;
  hooked_way.finalize = Finalize::hook;
  CheckRun builtin, hooked;
  const auto builtin_layer = layer_of(subject, subject.way), hooked_layer = layer_of(subject, hooked_way, {.row = identity_hook});
  if (Outcome failure = run_all(*builtin_layer, subject, builtin)) return failure;
  if (Outcome failure = run_all(*hooked_layer, subject, hooked)) return failure;
  return compare_bits(builtin, hooked, "identity hook");
}

Outcome threads_change_nothing(const LawSubject& subject) {
  CheckRun expected;
  const auto layer = layer_of(subject, subject.way);
  if (Outcome failure = run_all(*layer, subject, expected)) return failure;
  for (const int threads : {1, 3}) {
    CheckWay way = subject.way;
    way.threads = threads;
    CheckRun run;
    const auto other = layer_of(subject, way);
    if (Outcome failure = run_all(*other, subject, run)) return failure;
    if (Outcome failure = compare_bits(expected, run, threads == 1 ? "one thread" : "three threads")) return failure;
  }
  return std::nullopt;
}

Outcome repetition_changes_nothing(const LawSubject& subject) {
  const std::vector<float> hidden_states = inputs_of(subject);
  const auto layer = layer_of(subject, subject.way, {}, true);
  for (const std::int64_t count : {kTokens, std::int64_t{1}, std::int64_t{0}, std::int64_t{5}, kTokens, kTokens}) {
    const auto fresh = layer_of(subject, subject.way);
    const CheckRun expected = run_tokens(*fresh, hidden_states, 0, count), run = run_tokens(*layer, hidden_states, 0, count);
    if (!run.status.ok()) return "forward failed: " + std::string(run.status.text());
    if (Outcome failure = compare_bits(expected, run, "used workspace")) return failure;
  }
  return std::nullopt;
}

Outcome batch_changes_nothing(const LawSubject& subject) {
  CheckWay way = subject.way;
  way.invariant = true;
  const std::vector<float> hidden_states = inputs_of(subject);
  CheckRun all;
  const auto layer = layer_of(subject, way);
  if (Outcome failure = run_all(*layer, subject, all)) return failure;
  for (std::int64_t token = 0; token < kTokens; ++token) {
    const CheckRun alone = run_tokens(*layer, hidden_states, token, 1);
    const std::int64_t hidden = subject.spec.hidden;
    const std::vector<float> in_batch(all.output.begin() + token * hidden, all.output.begin() + (token + 1) * hidden);
    if (!same_bits(alone.output, in_batch))
      return format_text("token %lld has other bits alone than in a batch", static_cast<long long>(token));
  }
  return std::nullopt;
}

/// Why the wish that a law needs is refused where the way itself can be planned.
Outcome refusal_of(const LawSubject& subject, const CheckWay& way) {
  if (!plan_way(subject.spec, subject.way, kTokens, subject.environment).plan) return std::nullopt;  // the check says so
  const PlanResult result = plan_way(subject.spec, way, kTokens, subject.environment);
  if (result.plan) return std::nullopt;
  return result.refusals.front().code + ": " + result.refusals.front().rule;
}

Outcome never(const LawSubject&) { return std::nullopt; }
Outcome without_hook(const LawSubject& subject) {
  CheckWay way = subject.way;
  way.finalize = Finalize::hook;
  return refusal_of(subject, way);
}
Outcome without_invariant(const LawSubject& subject) {
  CheckWay way = subject.way;
  way.invariant = true;
  return refusal_of(subject, way);
}

constexpr LawCheck kLaws[] = {
    {"L4", "poison_changes_nothing", poison_changes_nothing, never},
    {"L9", "zero_tokens_run", zero_tokens_run, never},
    {"L12", "identity_hook_is_builtin", identity_hook_is_builtin, without_hook},
    {"L15", "threads_change_nothing", threads_change_nothing, never},
    {"L15", "batch_changes_nothing_when_invariant", batch_changes_nothing, without_invariant},
    {"L16", "repetition_changes_nothing", repetition_changes_nothing, never},
};

}  // namespace

std::span<const LawCheck> law_checks() { return kLaws; }

}  // namespace motet
