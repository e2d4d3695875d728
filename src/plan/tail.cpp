// SPDX-License-Identifier: Apache-2.0
#include "plan/tail.h"

#include <algorithm>

namespace motet {
namespace {

struct State {
  std::int64_t width = 0;
  bool reduced = true, scaled = true;
};

bool needs_scale(const LayerSpec& spec) { return spec.router.scale_site == ScaleSite::routed_sum && spec.router.scale != 1; }
bool adds_zero_experts(const LayerSpec& spec) { return spec.router.zero_expert_kind == ZeroExpertKind::identity; }

State start(const TailFacts& facts) {
  return {.width = facts.stored_width, .reduced = facts.reduced, .scaled = !needs_scale(facts.spec)};
}

State after(TailOp op, State state, const LayerSpec& spec) {
  if (op == TailOp::truncate) state.width = spec.dispatch_width();
  if (op == TailOp::reduce) state.reduced = true;
  if (op == TailOp::scale) state.scaled = true;
  if (op == TailOp::latent_out) state.width = spec.hidden;
  return state;
}

/// Which ops the layer must have, so that none is forgotten and none is foreign.
bool required(TailOp op, const TailFacts& facts) {
  switch (op) {
    case TailOp::truncate:
      return facts.stored_width > facts.spec.dispatch_width();
    case TailOp::reduce:
      return !facts.reduced;
    case TailOp::scale:
      return needs_scale(facts.spec);
    case TailOp::latent_norm:
      return facts.spec.latent_norm;
    case TailOp::latent_out:
      return facts.spec.latent > 0;
    case TailOp::add_shared:
      return facts.spec.shared.intermediate > 0;
    case TailOp::add_zero_experts:
      return adds_zero_experts(facts.spec);
    case TailOp::round:
      return true;
  }
  return false;
}

struct Progress {
  const std::vector<TailStep>& steps;
  std::size_t next;
  bool done(TailOp op) const {
    return std::any_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(next),
                       [op](const TailStep& step) { return step.op == op; });
  }
};

const char* broken_rule(TailOp op, const State& state, const Progress& progress, const TailFacts& facts) {
  const LayerSpec& spec = facts.spec;
  const bool projected = spec.latent == 0 || progress.done(TailOp::latent_out);
  switch (op) {
    case TailOp::truncate:
      return state.width > spec.dispatch_width() ? nullptr : "there is no padding to cut";
    case TailOp::reduce:
      if (state.width > (projected ? spec.hidden : spec.latent))
        return "padding is never sent: cut to the true width before the sum over ranks";
      if (state.reduced) return "the sum over ranks is already done";
      return facts.shared_sliced && !progress.done(TailOp::add_shared)
                 ? "the partial shared expert must be in the one sum over ranks"
                 : nullptr;
    case TailOp::scale:
      if (state.scaled) return "the routed scale is applied exactly once";
      return progress.done(TailOp::add_shared) ? "the routed scale must not reach the shared expert" : nullptr;
    case TailOp::latent_norm:
      if (!state.reduced) return "the norm is not linear: the sum over ranks comes first";
      if (!state.scaled) return "a scale after the norm is not a scale before it";
      return state.width == spec.latent && !projected ? nullptr : "the norm has the true latent width";
    case TailOp::latent_out:
      if (spec.latent_norm && !progress.done(TailOp::latent_norm)) return "the norm comes before the projection";
      return state.width == spec.latent ? nullptr : "the projection reads the true latent width";
    case TailOp::add_shared:
      if (state.width != spec.hidden || !projected) return "both addends have the true hidden width";
      if (state.reduced == facts.shared_sliced) return "both addends are in the same reduced state";
      return state.scaled ? nullptr : "the routed scale must not reach the shared expert";
    case TailOp::add_zero_experts:
      if (state.width != spec.hidden || !projected) return "both addends have the true hidden width";
      if (!state.reduced) return "every rank would add the zero experts: the sum over ranks comes first";
      return state.scaled ? nullptr : "zero experts carry the scale in their weights";
    case TailOp::round:
      if (state.width != spec.hidden || !projected) return "the output has the true hidden width";
      if (!state.reduced) return "the output is the whole sum over ranks";
      if (!state.scaled) return "the routed scale is missing";
      return progress.next + 1 == progress.steps.size() ? nullptr : "rounding is the last step";
  }
  return "an op that is none";
}

}  // namespace

TailFacts tail_facts(const Draft& draft) {
  return {.spec = draft.spec,
          .stored_width = draft.storage.rows_width,
          .reduced = draft.ranks() == 1 || draft.deployment.placement == TokenPlacement::sharded,
          .shared_sliced = shared_is_sliced(draft.spec, draft.deployment)};
}

std::vector<TailStep> make_tail(const TailFacts& facts) {
  // A partial shared expert joins before the one sum over ranks; otherwise the sum is taken early, where rows are narrowest.
  std::vector<TailOp> order{TailOp::truncate,   TailOp::reduce,           TailOp::scale,      TailOp::latent_norm,
                            TailOp::latent_out, TailOp::add_zero_experts, TailOp::add_shared, TailOp::round};
  if (facts.shared_sliced)
    order = {TailOp::truncate, TailOp::scale, TailOp::latent_out, TailOp::add_shared, TailOp::reduce, TailOp::round};
  std::vector<TailStep> steps;
  State state = start(facts);
  for (const TailOp op : order) {
    if (!required(op, facts)) continue;
    const State next = after(op, state, facts.spec);
    steps.push_back({.op = op,
                     .width_in = state.width,
                     .width_out = next.width,
                     .reduced_in = state.reduced,
                     .reduced_out = next.reduced,
                     .scaled_in = state.scaled,
                     .scaled_out = next.scaled});
    state = next;
  }
  return steps;
}

std::optional<std::string> check_tail(const std::vector<TailStep>& steps, const TailFacts& facts) {
  State state = start(facts);
  const auto fail = [](const TailStep& step, const char* why) { return std::string(name_of(step.op)) + ": " + why; };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TailStep& step = steps[i];
    const Progress progress{steps, i};
    if (progress.done(step.op))
      return fail(step, step.op == TailOp::scale ? "the routed scale is applied exactly once" : "each step at most once");
    if (!required(step.op, facts) && step.op != TailOp::scale && step.op != TailOp::reduce && step.op != TailOp::truncate)
      return fail(step, "the layer has no such step");
    if (step.width_in != state.width || step.reduced_in != state.reduced || step.scaled_in != state.scaled)
      return fail(step, "it does not start from the state that the step before it leaves");
    if (const char* why = broken_rule(step.op, state, progress, facts)) return fail(step, why);
    state = after(step.op, state, facts.spec);
    if (step.width_out != state.width || step.reduced_out != state.reduced || step.scaled_out != state.scaled)
      return fail(step, "it claims a state that it does not leave");
  }
  for (const TailOp op : {TailOp::truncate, TailOp::reduce, TailOp::scale, TailOp::latent_norm, TailOp::latent_out,
                          TailOp::add_shared, TailOp::add_zero_experts, TailOp::round})
    if (required(op, facts) && !Progress{steps, steps.size()}.done(op)) return std::string(name_of(op)) + ": the step is missing";
  return std::nullopt;
}

}  // namespace motet
