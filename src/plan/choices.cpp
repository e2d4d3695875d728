// SPDX-License-Identifier: Apache-2.0
#include "plan/choices.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/text.h"
#include "plan/exchange.h"
#include "plan/recipe.h"
#include "plan/refusals.h"

namespace motet {
namespace {

/// What a backend is asked for.
struct Attempt {
  std::string backend, target;  ///< "" = any
};

/// What a backend answers.
struct Answer {
  std::string target;
  std::optional<Refusal> refusal;
};

BackendRequest request_for(const Question& question, const Deployment& deployment, std::string_view target, int threads) {
  return {.spec = question.spec,
          .deployment = deployment,
          .environment = question.environment,
          .target = target,
          .tokens = deployment.at_once(),
          .experts_here = question.share.experts,
          .intermediate_valid = question.share.intermediate,
          .shared_intermediate_valid = question.share.shared,
          .threads = threads};
}

std::vector<std::string> usable_targets(const Environment& environment) {
  std::vector<std::string> names;
  for (const TargetFacts& target : environment.targets)
    if (target.compiled && target.usable) names.push_back(target.name);
  return names;
}

std::optional<Refusal> refuse_target(const TargetFacts& target, const Environment& environment) {
  const std::string usable = join(usable_targets(environment));
  if (!target.compiled)
    return Refusal{"target_not_compiled", "a target must be compiled into this build", target.name, "one of: " + usable};
  if (!target.usable)
    return Refusal{"target_not_usable", "a target must be usable on this machine",
                   target.name + (target.reason.empty() ? "" : " (" + target.reason + ")"), "one of: " + usable};
  return std::nullopt;
}

const TargetFacts* find_target(const Environment& environment, std::string_view name) {
  for (const TargetFacts& target : environment.targets)
    if (target.name == name) return &target;
  return nullptr;
}

class Selector {
 public:
  explicit Selector(const Question& question) : question_(question), wishes_(question.deployment.wishes) {
    out_.as_planned = question.deployment;
  }

  Selection select() {
    settle_threads();
    settle_finalize();
    choose_backend();
    choose_strategy();
    if (out_.backend != nullptr)
      out_.storage = out_.backend->storage(request_for(question_, out_.as_planned, out_.target, out_.threads));
    report_backends();
    report_targets();
    report_levels();
    settle_wire();
    report_exchange();
    report_finalize();
    return std::move(out_);
  }

 private:
  void report(Choice choice) { out_.choices.push_back(std::move(choice)); }
  void settle_threads() {
    const Environment& environment = question_.environment;
    out_.threads = wishes_.threads > 0 ? wishes_.threads : environment.threads;
    threads_reason_ = wishes_.threads > 0 ? "wished" : "as many as this process may use";
    threads_reason_ += ": the machine gives " + std::to_string(environment.threads);
    if (!environment.threads_reason.empty()) threads_reason_ += " (" + environment.threads_reason + ")";
    if (wishes_.threads > environment.threads) threads_reason_ += "; more threads than processors, they will take turns";
  }

  void settle_finalize() {
    if (const auto refusal = finalize_refused(wishes_.finalize)) {
      out_.refusals.push_back(*refusal);
      out_.as_planned.wishes.finalize = Finalize::builtin;  // only to complete the report
    }
  }

  std::optional<Refusal> finalize_refused(Finalize form) const {
    const std::string name(name_of(form));
    if (form == Finalize::builtin) return std::nullopt;
    if (question_.spec.router.weight_site == WeightSite::input)
      return Refusal{name + "_weight_on_input", "rows and weights of a layer that weighs its input are no sum to be weighed again",
                     name, "builtin"};
    if (form == Finalize::hook && question_.deployment.tp > 1)
      return Refusal{"hook_split_experts", "a hook makes its term of a whole row of an expert, and tp ranks have parts of it",
                     "tp " + std::to_string(question_.deployment.tp), "tp 1, or finalize builtin"};
    if (form == Finalize::unfinalized && ranks() > 1)
      return Refusal{"unfinalized_distributed", "unfinalized rows of several ranks need a hook that sums them",
                     std::to_string(ranks()) + " ranks", "one rank, or finalize hook"};
    const Deployment& deployment = question_.deployment;
    if (form == Finalize::unfinalized && deployment.at_once() < deployment.tokens)
      return Refusal{"unfinalized_chunked", "the rows of a chunk make way for those of the next one",
                     std::to_string(deployment.tokens) + " tokens, chunk_tokens " + std::to_string(deployment.chunk_tokens),
                     "all tokens at once, or finalize hook"};
    return std::nullopt;
  }

  Answer ask(const BackendTraits& backend, const Deployment& deployment, const std::string& target_wish) const {
    const Environment& environment = question_.environment;
    if (!backend.has_targets) {
      if (!target_wish.empty())
        return {"", Refusal{"backend_has_no_targets", "backend " + std::string(backend.name) + " is not compiled per target",
                            "target " + target_wish, "no target"}};
      return {"", backend.supports(request_for(question_, deployment, "", out_.threads))};
    }
    std::optional<Refusal> first;
    for (const TargetFacts& target : environment.targets) {
      if (!target_wish.empty() && target.name != target_wish) continue;
      std::optional<Refusal> refusal = refuse_target(target, environment);
      const bool usable = !refusal;
      if (usable) refusal = backend.supports(request_for(question_, deployment, target.name, out_.threads));
      if (!refusal) return {target.name, std::nullopt};
      if (!first || (usable && first->code.starts_with("target_not_"))) first = refusal;  // a backend's own reason says more
    }
    if (!first) first = Refusal{"no_target", "a backend with targets needs one that is usable", "none", "a usable target"};
    return {"", first};
  }

  bool try_attempt(const Attempt& attempt) {
    for (const BackendTraits& backend : question_.catalog.backends) {
      if (attempt.backend.empty() ? !backend.eligible_unasked : backend.name != attempt.backend) continue;
      const Answer answer = ask(backend, out_.as_planned, attempt.target);
      if (answer.refusal) continue;
      out_.backend = &backend;
      out_.target = answer.target;
      attempt_ = attempt;
      return true;
    }
    return false;
  }

  /// A name that nobody knows is refused and dropped, so that the report can go on without it.
  std::string known_backend() {
    std::vector<std::string> known;
    for (const BackendTraits& backend : question_.catalog.backends) known.emplace_back(backend.name);
    if (wishes_.backend.empty() || std::find(known.begin(), known.end(), wishes_.backend) != known.end()) return wishes_.backend;
    out_.refusals.push_back(
        {"backend_unknown", "a wished backend must be one that this build has", quoted(wishes_.backend), "one of: " + join(known)});
    return "";
  }
  std::string known_target() {
    if (wishes_.target.empty() || find_target(question_.environment, wishes_.target) != nullptr) return wishes_.target;
    std::vector<std::string> known;
    for (const TargetFacts& target : question_.environment.targets) known.push_back(target.name);
    out_.refusals.push_back(
        {"target_unknown", "a wished target must be one that this build knows", quoted(wishes_.target), "one of: " + join(known)});
    return "";
  }

  void choose_backend() {
    const Attempt wished{known_backend(), known_target()};
    attempt_ = wished;
    if (try_attempt(wished)) return;
    const std::vector<Refusal> refused = refusals_of(wished);
    if (wishes_.allow_substitution) {
      out_.as_planned.wishes.residence = Residence::mapped;  // costs speed alone, so it is given up first
      if (try_attempt(wished)) return;
      out_.as_planned.wishes.residence = wishes_.residence;
      for (const Attempt& other : {Attempt{wished.backend, ""}, Attempt{"", wished.target}, Attempt{"", ""}})
        if (try_attempt(other)) return take_substitute();
    }
    out_.refusals.insert(out_.refusals.end(), refused.begin(), refused.end());
  }

  void take_substitute() {
    Wishes& taken = out_.as_planned.wishes;
    if (!taken.backend.empty()) taken.backend = out_.backend->name;
    if (!taken.target.empty()) taken.target = out_.target;
  }

  std::vector<Refusal> refusals_of(const Attempt& wished) const {
    if (const TargetFacts* target = find_target(question_.environment, wished.target))
      if (const auto refusal = refuse_target(*target, question_.environment)) return {*refusal};
    std::vector<Refusal> refusals;
    for (const BackendTraits& backend : question_.catalog.backends) {
      if (wished.backend.empty() ? !backend.eligible_unasked : backend.name != wished.backend) continue;
      if (const Answer answer = ask(backend, out_.as_planned, wished.target); answer.refusal) refusals.push_back(*answer.refusal);
    }
    if (refusals.empty())
      refusals.push_back({"no_backend", "a plan needs a backend that can run the layer", "none in this build", "a backend"});
    return refusals;
  }

  void report_backends() {
    for (const BackendTraits& backend : question_.catalog.backends) {
      Choice choice{.kind = "backend", .name = std::string(backend.name)};
      // The wished backend is shown against the wish; any other against what was tried last.
      const Answer answer = ask(backend, out_.as_planned, backend.name == wishes_.backend ? wishes_.target : attempt_.target);
      if (&backend == out_.backend) {
        choice.verdict = Verdict::chosen;
        choice.substituted = !wishes_.backend.empty() && backend.name != wishes_.backend;
        choice.reason = backend.name == wishes_.backend ? "wished" : "first in selection order that can run this layer";
      } else if (answer.refusal) {
        choice.verdict = Verdict::refused;
        choice.refusal = answer.refusal;
      } else {
        choice.reason = !backend.eligible_unasked  ? "can run this layer, taken only when wished by name"
                        : attempt_.backend.empty() ? "can run this layer, later in selection order"
                                                   : "can run this layer, another was wished";
      }
      report(std::move(choice));
    }
  }

  void report_targets() {
    for (const TargetFacts& target : question_.environment.targets) {
      Choice choice{.kind = "target", .name = target.name, .refusal = refuse_target(target, question_.environment)};
      if (!choice.refusal && out_.backend != nullptr && !out_.backend->has_targets)
        choice.refusal =
            Refusal{"backend_has_no_targets", "backend " + std::string(out_.backend->name) + " is not compiled per target",
                    target.name, "no target"};
      if (!choice.refusal && out_.backend != nullptr && target.name != out_.target)
        choice.refusal = out_.backend->supports(request_for(question_, out_.as_planned, target.name, out_.threads));
      if (choice.refusal) {
        choice.verdict = Verdict::refused;
      } else if (out_.backend != nullptr && target.name == out_.target) {
        choice.verdict = Verdict::chosen;
        choice.substituted = !wishes_.target.empty() && target.name != wishes_.target;
        choice.reason = (target.name == wishes_.target ? "wished" : "best that runs this layer") +
                        (target.reason.empty() ? "" : ": " + target.reason);
      } else {
        choice.reason = attempt_.target.empty() ? "can run this layer, later in order" : "can run this layer, another was wished";
      }
      report(std::move(choice));
    }
  }

  /// Why no backend that may be tried takes a deployment: the first one's reason; nothing when one takes it.
  std::optional<Refusal> refused_by_all(const Deployment& deployment) const {
    std::optional<Refusal> first;
    for (const BackendTraits& backend : question_.catalog.backends) {
      if (attempt_.backend.empty() ? !backend.eligible_unasked : backend.name != attempt_.backend) continue;
      const Answer answer = ask(backend, deployment, attempt_.target);
      if (!answer.refusal) return std::nullopt;
      if (!first) first = answer.refusal;
    }
    return first;
  }

  /// One level of a wish: as the backend answers when it is asked for this level.
  template <class Level>
  void report_level(const char* kind, Level level, Level Wishes::*member, const std::string& chosen_reason) {
    Choice choice{.kind = kind, .name = std::string(name_of(level))};
    const Level taken = out_.as_planned.wishes.*member;
    if (level != taken || out_.backend == nullptr) {
      Deployment other = out_.as_planned;
      other.wishes.*member = level;
      choice.refusal = out_.backend == nullptr ? refused_by_all(other)
                                               : out_.backend->supports(request_for(question_, other, out_.target, out_.threads));
    }
    if (choice.refusal) {
      choice.verdict = Verdict::refused;
    } else if (out_.backend != nullptr && level == taken && (level == wishes_.*member || wishes_.allow_substitution)) {
      choice.verdict = Verdict::chosen;
      choice.substituted = level != wishes_.*member;
      choice.reason = chosen_reason;
    } else {
      choice.reason = "can run this layer, not asked for";
    }
    report(std::move(choice));
  }

  std::string fast_promise() const {
    const QuantisedStorage& quantised = out_.storage.quantised;
    if (quantised.group == 0) return "; never less accurate than int8 activations with a scale per 32";
    return format_text("; activations are quantised: relative error at most %g", quantised_error_bound(quantised.step));
  }

  void report_levels() {
    const Environment& environment = question_.environment;
    std::string ranked;
    if (out_.backend != nullptr && out_.backend->has_targets && !environment.arithmetic_ranking.empty()) {
      ranked = "; fastest first here: " + join(environment.arithmetic_ranking, " > ") + ", for few tokens " +
               join(environment.few_ranking, " > ");
      if (!environment.ranking_evidence.empty()) ranked += " (" + environment.ranking_evidence + ")";
    }
    const std::string taken = "computed in " + out_.storage.arithmetic;
    report_level("arithmetic", Arithmetic::exact, &Wishes::arithmetic, taken + "; relative error at most 2e-4");
    report_level("arithmetic", Arithmetic::bf16, &Wishes::arithmetic,
                 taken + "; never less accurate than bf16 activations with fp32 sums" + ranked);
    report_level("arithmetic", Arithmetic::fast, &Wishes::arithmetic, taken + fast_promise());
    report_level("residence", Residence::mapped, &Wishes::residence, "published bytes are used where they are");
    report_level("residence", Residence::packed, &Wishes::residence,
                 "weights are laid out anew at creation: 16-row panels, one stream each");
    report({.kind = "threads", .name = std::to_string(out_.threads), .verdict = Verdict::chosen, .reason = threads_reason_});
  }

  std::int64_t ranks() const { return question_.deployment.tp * question_.deployment.ep; }

  /// Rows that come back may be rounded only where the level of accuracy leaves room for it.
  std::optional<Refusal> wire_refused(std::string_view wire) const {
    if (wire == "fp8") return Refusal{"wire_not_built", "rows between ranks are bf16 or fp32 in this build", "fp8", "bf16 or fp32"};
    if (wire == "fp32") return std::nullopt;
    if (wishes_.invariant)
      return Refusal{"wire_not_invariant", "a row that is rounded on its way is not the row of one rank", std::string(wire),
                     "fp32"};
    if (out_.as_planned.wishes.arithmetic == Arithmetic::exact)
      return Refusal{"wire_not_exact", "bf16 keeps 8 bits of a row, level exact promises 2e-4", std::string(wire),
                     "fp32, or level bf16"};
    return std::nullopt;
  }

  void settle_wire() {
    const bool must = wire_refused("bf16").has_value();
    std::string taken = wishes_.wire.empty() ? (must ? "fp32" : "bf16") : wishes_.wire;
    if (taken != "fp32" && taken != "bf16" && taken != "fp8") {
      out_.refusals.push_back(
          {"wire_unknown", "a wished wire type must be one that this build knows", quoted(taken), "one of: fp32, bf16, fp8"});
      taken = "fp32";
    }
    const std::string wished = taken;
    if (ranks() == 1) {
      if (!wishes_.wire.empty() && !wishes_.allow_substitution)
        out_.refusals.push_back({"wire_needs_ranks", "one rank has nobody to exchange with", wishes_.wire, "tp or ep above 1"});
      return;
    }
    if (const auto refusal = wire_refused(taken)) {
      if (wishes_.allow_substitution)
        out_.as_planned.wishes.wire = taken = must ? "fp32" : "bf16";
      else
        out_.refusals.push_back(*refusal);
    }
    out_.wire = taken == "bf16" ? DType::bf16 : DType::f32;
    for (const char* name : {"fp32", "bf16", "fp8"}) {
      Choice choice{.kind = "wire", .name = name, .refusal = wire_refused(name)};
      choice.verdict = choice.refusal ? Verdict::refused : taken == name ? Verdict::chosen : Verdict::eligible;
      if (!choice.refusal)
        choice.reason = taken != name           ? "possible, not asked for"
                        : !wishes_.wire.empty() ? "wished"
                        : must                  ? "nothing is rounded on the way"
                                                : "half the bytes; each row that comes back is rounded once";
      choice.substituted = choice.verdict == Verdict::chosen && taken != wished;
      report(std::move(choice));
    }
  }

  std::optional<Refusal> strategy_refused(const StrategyTraits& strategy) const {
    const std::string name(strategy.name);
    const Finalize form = out_.as_planned.wishes.finalize;
    if (ranks() == 1) return Refusal{"strategy_needs_ranks", "one rank has nobody to exchange with", name, "tp or ep above 1"};
    const bool replicated = question_.deployment.placement == TokenPlacement::replicated;
    if (replicated != (strategy.unit == RowUnit::none))
      return Refusal{replicated ? "strategy_needs_sharded_tokens" : "strategy_needs_replicated_tokens",
                     replicated ? "it sends tokens to other ranks, which have them already"
                                : "it sends no tokens, and other ranks do not have them",
                     name + " with " + std::string(name_of(question_.deployment.placement)) + " tokens",
                     replicated ? "allreduce, or sharded tokens" : "a strategy that dispatches, or replicated tokens"};
    if (wishes_.invariant && strategy.unit != RowUnit::token_expert)
      return Refusal{"strategy_not_invariant", "sums of a rank's experts are other bits than one sum over k", name,
                     "a strategy whose rows are choices"};
    if (strategy.weight_site != WeightSite::combine) return std::nullopt;
    if (form == Finalize::hook)
      return Refusal{"hook_weights_in_combine", "the weights are applied where rows come back: a hook would apply them twice", name,
                     "a strategy that weighs where experts are, or finalize builtin"};
    if (question_.spec.router.weight_site == WeightSite::input)
      return Refusal{"weight_on_input_in_combine", "a layer that weighs its input sends its weights along", name,
                     "a strategy that weighs where experts are"};
    return std::nullopt;
  }

  void choose_strategy() {
    const std::vector<StrategyTraits>& all = question_.catalog.strategies;
    const auto find = [&](std::string_view name) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const StrategyTraits& each) { return each.name == name; });
      return found == all.end() ? nullptr : &*found;
    };
    const StrategyTraits* const wished = find(wishes_.strategy);
    if (!wishes_.strategy.empty() && wishes_.strategy != "none" && wished == nullptr) {
      std::vector<std::string> known{"none"};
      for (const StrategyTraits& each : all) known.emplace_back(each.name);
      out_.refusals.push_back({"strategy_unknown", "a wished strategy must be one that this build has", quoted(wishes_.strategy),
                               "one of: " + join(known)});
    }
    std::optional<Refusal> refused;
    if (wished != nullptr) refused = strategy_refused(*wished);
    if (wishes_.strategy == "none" && ranks() > 1) refused = none_refused();
    if (refused && !wishes_.allow_substitution) out_.refusals.push_back(*refused);
    if (ranks() == 1) return;
    if (wished != nullptr && !refused) {
      out_.strategy = wished;
      return;
    }
    std::vector<std::string> why;
    for (const StrategyTraits& each : all) {
      const auto refusal = strategy_refused(each);
      if (refusal) why.push_back(std::string(each.name) + ": " + refusal->code);
      if (refusal || out_.strategy != nullptr) continue;
      out_.strategy = &each;
      if (!wishes_.strategy.empty()) out_.as_planned.wishes.strategy = each.name;
    }
    if (out_.strategy == nullptr)
      out_.refusals.push_back({"no_strategy", "several ranks need a strategy that can exchange this layer's rows",
                               why.empty() ? "none in this build" : join(why), "a strategy that can, or one rank"});
  }

  Refusal none_refused() const {
    return {"strategy_needs_one_rank", "without a strategy there is one rank", std::to_string(ranks()) + " ranks", "tp 1 and ep 1"};
  }

  /// Estimated bytes that a token's rows are to other ranks, and back, when experts are chosen evenly.
  std::string traffic(const StrategyTraits& strategy) const {
    const LayerSpec& spec = question_.spec;
    const auto all = static_cast<double>(ranks()), groups = static_cast<double>(question_.deployment.ep),
               k = static_cast<double>(spec.top_k);
    const double reached = strategy.unit == RowUnit::whole_batch || strategy.unit == RowUnit::none ? all
                           : strategy.unit == RowUnit::token_rank ? (all / groups) * groups * (1 - std::pow(1 - 1 / groups, k))
                                                                  : k * all / groups;
    const double rows = reached * (1 - 1 / all), choices = strategy.unit == RowUnit::token_expert ? 1 : k;
    const double out = strategy.unit == RowUnit::none
                           ? 0
                           : rows * (static_cast<double>(hidden_row_bytes(spec, out_.as_planned)) + 4 + 8 * choices);
    const std::int64_t width = shared_is_sliced(spec, out_.as_planned) ? spec.hidden : spec.dispatch_width();
    const double back = rows * static_cast<double>(width) * (out_.wire == DType::bf16 ? 2 : 4);
    return "about " + bytes_text(static_cast<std::int64_t>(out)) + " of each token go to other ranks and " +
           bytes_text(static_cast<std::int64_t>(back)) + " come back, when experts are chosen evenly";
  }

  void report_exchange() {
    Choice none{.kind = "strategy", .name = "none", .verdict = Verdict::chosen, .reason = "one rank: nothing is exchanged"};
    if (ranks() > 1) none = {.kind = "strategy", .name = "none", .verdict = Verdict::refused, .refusal = none_refused()};
    report(std::move(none));
    for (const StrategyTraits& strategy : question_.catalog.strategies) {
      Choice choice{.kind = "strategy", .name = std::string(strategy.name), .refusal = strategy_refused(strategy)};
      const bool chosen = out_.strategy == &strategy, wished = strategy.name == wishes_.strategy;
      choice.verdict = choice.refusal ? Verdict::refused : chosen ? Verdict::chosen : Verdict::eligible;
      choice.substituted = chosen && !wishes_.strategy.empty() && !wished;
      if (!choice.refusal)
        choice.reason = std::string(chosen ? (wished ? "wished" : "first in selection order that can exchange this layer's rows")
                                           : "possible, not taken") +
                        "; " + traffic(strategy);
      report(std::move(choice));
    }
    out_.scheduler = "external";
    report({.kind = "scheduler",
            .name = "external",
            .verdict = Verdict::chosen,
            .reason = "stages run one after the other around the backend" + chunks()});
    report({.kind = "scheduler",
            .name = "fused",
            .verdict = Verdict::refused,
            .refusal = Refusal{"scheduler_not_built", "no backend owns its exchange yet", "fused", "external"}});
  }

  std::string chunks() const {
    const Deployment& deployment = question_.deployment;
    if (deployment.at_once() == deployment.tokens) return "";
    return ", " + std::to_string(deployment.at_once()) + " tokens at once";
  }

  void report_finalize() {
    for (const Finalize form : {Finalize::builtin, Finalize::unfinalized, Finalize::hook}) {
      Choice choice{.kind = "finalize", .name = std::string(name_of(form)), .refusal = finalize_refused(form)};
      if (!choice.refusal && out_.backend != nullptr && form != out_.as_planned.wishes.finalize) {
        Deployment other = out_.as_planned;
        other.wishes.finalize = form;
        choice.refusal = out_.backend->supports(request_for(question_, other, out_.target, out_.threads));
      }
      if (choice.refusal) {
        choice.verdict = Verdict::refused;
      } else if (form == wishes_.finalize) {
        choice.verdict = Verdict::chosen;
        choice.reason = form == Finalize::builtin ? "weigh and sum"
                        : form == Finalize::hook  ? "the hook given at creation makes and weighs each row"
                                                  : "the caller gets the rows: routed experts only, no shared expert and no tail";
      } else {
        choice.reason = "possible, not asked for";
      }
      report(std::move(choice));
    }
  }

  const Question& question_;
  const Wishes& wishes_;
  Attempt attempt_;
  std::string threads_reason_;
  Selection out_;
};

}  // namespace

Selection select(const Question& question) { return Selector(question).select(); }

}  // namespace motet
