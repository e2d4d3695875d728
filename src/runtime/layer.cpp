// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/fp_state.h"
#include "base/thread_pool.h"
#include "routing/router.h"
#include "runtime/guarded_executor.h"
#include "runtime/layer_impl.h"

namespace motet {
namespace {

/// A plan and hooks that belong together, and a plan that one rank can run (L11, L12).
void check_plan_and_hooks(const Plan& plan, const Hooks& hooks) {
  const bool has_hook = hooks.row != nullptr || hooks.batch != nullptr;
  const bool wants_hook = plan.deployment.wishes.finalize == Finalize::hook;
  if (plan.ranks.size() != 1)
    throw Error(ErrorCode::not_supported, "a layer of several ranks needs an exchange, which is not built, but the plan has " +
                                              std::to_string(plan.ranks.size()) + " ranks; plan with tp = 1 and ep = 1");
  if (hooks.row != nullptr && hooks.batch != nullptr)
    throw Error(ErrorCode::hook_mismatch, "a layer takes one hook, but both a row hook and a batch hook were given; give one");
  if (has_hook != wants_hook)
    throw Error(ErrorCode::hook_mismatch,
                std::string("a hook belongs to a plan with finalize = hook, but the plan has finalize = ") +
                    std::string(name_of(plan.deployment.wishes.finalize)) + " and " +
                    (has_hook ? "a hook was given; plan with finalize = hook"
                              : "no hook was given; give one or plan with finalize = builtin"));
  if (plan.recipe.weight_site == WeightSite::activation || plan.recipe.weight_site == WeightSite::combine)
    throw Error(ErrorCode::not_supported,
                "the routing weight can be applied on the input or at finalize, but the plan applies it at " +
                    std::string(name_of(plan.recipe.weight_site)) + ", which is not built; plan another weight site");
  if (plan.memory.fit != Fit::fits)
    throw Error(ErrorCode::would_not_fit, "a layer must fit its memory limit of " + std::to_string(plan.memory.limit) +
                                              " bytes, but it needs " + std::to_string(plan.memory.peak) + "; " +
                                              plan.memory.advice);
}

const Backend& backend_of(const Plan& plan) {
  const Backend* backend = find_backend(plan.backend);
  if (backend != nullptr) return *backend;
  throw Error(ErrorCode::not_supported,
              "the plan's backend must be one of this build, but it has no '" + plan.backend + "'; make the plan with plan()");
}

}  // namespace

std::unique_ptr<Layer> Layer::create(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks,
                                     Executor* executor) {
  return create_layer(plan, std::move(weights), hooks, executor, LayerOptions{.poison = poison_wished()});
}

std::unique_ptr<Layer> create_layer(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks,
                                    Executor* executor, const LayerOptions& options) {
  check_plan_and_hooks(plan, hooks);
  if (weights == nullptr)
    throw Error(ErrorCode::invalid_argument, "a layer needs weights, but null was given; load them or make synthetic ones");
  return std::make_unique<LayerImpl>(plan, std::move(weights), hooks, executor, options);
}

LayerImpl::LayerImpl(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks, Executor* executor,
                     const LayerOptions& options)
    : plan_(plan),
      weights_(std::move(weights)),
      hooks_(hooks),
      extents_(extents_of(plan)),
      workspace_(plan.workspace.bytes, "the workspace of layer " + std::to_string(plan.spec.layer)) {
  check_vectors(plan_.spec, *weights_);
  areas_ = areas_of(plan_, extents_, workspace_.data());
  backend_ = backend_of(plan_).prepare(plan_, weights_);

  if (executor != nullptr) {
    if (executor->threads() > plan_.threads)
      throw Error(ErrorCode::invalid_argument, "an executor must have at most the plan's " + std::to_string(plan_.threads) +
                                                   " threads, whose scratch is planned, but it has " +
                                                   std::to_string(executor->threads()) +
                                                   "; plan with threads = " + std::to_string(executor->threads()));
    own_executor_ = std::make_unique<GuardedExecutor>(*executor);
  } else {
    own_executor_ = std::make_unique<ThreadPool>(plan_.threads);
  }
  executor_ = own_executor_.get();
  if (options.poison) poison_ = std::make_unique<Poison>(plan_, workspace_.data());

  router_bias_ = floats_of(weights_->router_bias);
  selection_bias_ = floats_of(weights_->selection_bias);
  per_expert_scale_ = floats_of(weights_->per_expert_scale);
  latent_norm_ = floats_of(weights_->latent_norm);
  shared_gate_ = floats_of(weights_->shared_gate);
  const std::int64_t threads = std::max(1, executor_->threads());
  route_scratch_.resize(static_cast<std::size_t>(threads * route_scratch_floats(extents_.choices())));
  if (plan_.spec.router.selection == RouterSelection::hash)
    hash_scratch_.resize(static_cast<std::size_t>(threads * extents_.top_k));
  costs_ = read_costs_of(*weights_);
  load_.assign(static_cast<std::size_t>(extents_.experts), 0);
}

}  // namespace motet
