// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/fp_state.h"
#include "base/thread_pool.h"
#include "plan/difference.h"
#include "plan/refusals.h"
#include "routing/router.h"
#include "runtime/environment.h"
#include "runtime/guarded_executor.h"
#include "runtime/layer_impl.h"
#include "runtime/rank_weights.h"

namespace motet {
namespace {

/// Every width, area and recipe that forward relies on is the plan's: only a plan that plan() makes is taken (L16, L18). Planning
/// again takes well under a millisecond.
void check_plan(const Plan& given) {
  const PlanResult fresh = plan(given.spec, given.deployment, given.environment);
  if (!fresh.plan)
    throw Error(ErrorCode::invalid_argument, "a plan must be as plan() makes it, but its spec and deployment cannot be planned: " +
                                                 sentence_of(fresh.refusals.front()) + "; make a plan and leave it as it is");
  if (const auto difference = first_difference(given, *fresh.plan))
    throw Error(ErrorCode::invalid_argument, "a plan must be as plan() makes it, but " + difference->path + " is " +
                                                 difference->first + " where plan() gives " + difference->second +
                                                 "; make a plan and leave it as it is");
  if (const std::string missing = missing_here(given.target); !missing.empty())
    throw Error(ErrorCode::not_supported, "the target of a plan must be one of this machine's, but " + given.target + " is not (" +
                                              missing + "); plan with Environment::probe() of the machine that runs the layer");
  if (given.memory.fit != Fit::fits)
    throw Error(ErrorCode::would_not_fit, "a layer must fit its memory limit of " + std::to_string(given.memory.limit) +
                                              " bytes, but it needs " + std::to_string(given.memory.peak) + "; " +
                                              given.memory.advice);
}

/// Hooks that belong to the plan (L12).
void check_hooks(const Plan& plan, const Hooks& hooks) {
  const bool has_hook = hooks.row != nullptr || hooks.batch != nullptr;
  const bool wants_hook = plan.deployment.wishes.finalize == Finalize::hook;
  if (hooks.row != nullptr && hooks.batch != nullptr)
    throw Error(ErrorCode::hook_mismatch, "a layer takes one hook, but both a row hook and a batch hook were given; give one");
  if (has_hook != wants_hook)
    throw Error(ErrorCode::hook_mismatch,
                std::string("a hook belongs to a plan with finalize = hook, but the plan has finalize = ") +
                    std::string(name_of(plan.deployment.wishes.finalize)) + " and " +
                    (has_hook ? "a hook was given; plan with finalize = hook"
                              : "no hook was given; give one or plan with finalize = builtin"));
}

}  // namespace

std::unique_ptr<Layer> Layer::create(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks,
                                     Executor* executor, std::shared_ptr<Group> group) {
  return create_layer(plan, std::move(weights), hooks, executor, LayerOptions{.poison = poison_wished()}, std::move(group));
}

std::unique_ptr<Layer> create_layer(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks,
                                    Executor* executor, const LayerOptions& options, std::shared_ptr<Group> group) {
  const auto ranks = static_cast<int>(plan.ranks.size()), members = group == nullptr ? 1 : group->ranks();
  const std::string fabric = members == 1 ? plan.deployment.fabric : group->fabric();
  const auto check = [&] {
    if (ranks != members)
      throw Error(ErrorCode::invalid_argument, "a plan of " + std::to_string(ranks) +
                                                   " ranks needs a group of as many, but the group has " + std::to_string(members) +
                                                   "; plan with tp * ep = " + std::to_string(members));
    if (plan.deployment.fabric != fabric)
      throw Error(ErrorCode::invalid_argument, "a plan must be made for the fabric of its group, but it is for " +
                                                   plan.deployment.fabric + " and the group is of " + fabric +
                                                   "; plan with fabric = " + fabric);
    check_plan(plan);
    check_hooks(plan, hooks);
    if (weights == nullptr)
      throw Error(ErrorCode::invalid_argument, "a layer needs weights, but null was given; load them or make synthetic ones");
  };
  if (members == 1) {
    check();
    return std::make_unique<LayerImpl>(plan, std::move(weights), hooks, executor, options, nullptr, nullptr);
  }
  auto ours = std::static_pointer_cast<GroupImpl>(std::move(group));
  // Making a layer is two steps on every rank: the agreement, and all have made it. A rank that fails leaves what is left of them.
  const auto or_leave = [&](int steps, auto make) {
    try {
      return make();
    } catch (...) {
      for (; steps > 0; --steps) ours->leave();
      throw;
    }
  };
  or_leave(2, check);
  or_leave(1, [&] { ours->agree(plan); });
  auto exchange = or_leave(1, [&] { return ours->make_exchange(plan); });
  auto layer = or_leave(1, [&] {
    return std::make_unique<LayerImpl>(plan, std::move(weights), hooks, executor, options, ours, std::move(exchange));
  });
  ours->agree(plan);  // all have made it
  return layer;
}

LayerImpl::LayerImpl(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const Hooks& hooks, Executor* executor,
                     const LayerOptions& options, std::shared_ptr<GroupImpl> group, std::unique_ptr<Exchange> exchange)
    : plan_(plan),
      group_(std::move(group)),
      exchange_(std::move(exchange)),
      slice_(plan.ranks[group_ == nullptr ? 0 : static_cast<std::size_t>(group_->rank())]),
      weights_(std::move(weights)),
      hooks_(hooks),
      extents_(extents_of(plan)),
      workspace_(plan.workspace.bytes, "the workspace of layer " + std::to_string(plan.spec.layer)) {
  check_vectors(plan_.spec, *weights_);
  rank_weights_ = weights_of_rank(plan_, slice_.rank, weights_);
  areas_ = areas_of(plan_, workspace_.data());
  if (executor != nullptr) {
    if (executor->threads() > plan_.threads)
      throw Error(ErrorCode::invalid_argument, "an executor must have at most the plan's " + std::to_string(plan_.threads) +
                                                   " threads, whose scratch is planned, but it has " +
                                                   std::to_string(executor->threads()) +
                                                   "; plan with threads = " + std::to_string(executor->threads()));
    own_executor_ = std::make_unique<GuardedExecutor>(*executor);
  } else {
    own_executor_ = std::make_unique<ThreadPool>(plan_.threads, group_ == nullptr ? PoolShare{} : group_->pool_share());
  }
  executor_ = own_executor_.get();
  backend_ = find_backend(plan_.backend)->prepare(plan_, slice_.rank, rank_weights_, *executor_);
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
  costs_ = read_costs_of(*rank_weights_);
  max_rows_ = plan_.max_rows();
  peers_.resize(plan_.ranks.size() > 1 ? plan_.ranks.size() : 0);
  if (dispatches() && extents_.zero_experts > 0) slots_.resize(static_cast<std::size_t>(extents_.chunk_tokens * extents_.top_k));
  load_.assign(static_cast<std::size_t>(extents_.experts), 0);
  chunk_load_.assign(static_cast<std::size_t>(slice_.expert_count), 0);
}

}  // namespace motet
