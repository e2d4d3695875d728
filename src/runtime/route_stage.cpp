// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "routing/router.h"
#include "runtime/grouping.h"
#include "runtime/input_check.h"
#include "runtime/layer_impl.h"
#include "runtime/parallel.h"

namespace motet {

void LayerImpl::route(const Call& call) noexcept {
  if (call.input.top_k_index != nullptr) {
    take_given_routing(call);
  } else if (call.ran_router) {
    backend_->run_router(call.input.hidden_states, areas_.logits, extents_.choices(), areas_.scratch, areas_.scratch_stride,
                         *executor_);
    route_logits(call, areas_.logits);
  } else {
    route_logits(call, static_cast<const float*>(call.input.router_logits.data));
  }
  give_routing(call);
}

/// The declared absent id becomes the one invalid id (L7); weights are taken as they are.
void LayerImpl::take_given_routing(const Call& call) noexcept {
  const std::int64_t choices = call.tokens * extents_.top_k;
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int32_t id = call.input.top_k_index[i];
    areas_.index[i] = id == call.input.absent_id ? kAbsent : id;
  }
  if (choices > 0) std::memcpy(areas_.weights, call.input.top_k_weights, static_cast<std::size_t>(choices) * sizeof(float));
}

/// Given logits are final; the model's logit bias is added to those that the router computed.
void LayerImpl::route_logits(const Call& call, const float* logits) noexcept {
  const std::int64_t choices = extents_.choices();
  const std::int64_t scratch_floats = route_scratch_floats(choices);
  const RouterSpec& router = plan_.spec.router;
  const bool add_bias = call.ran_router && !router_bias_.empty();
  const auto value_or_null = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
  for_each_block(*executor_, call.tokens, grain_of(choices * 8), [&](std::int64_t begin, std::int64_t end, int thread) noexcept {
    for (std::int64_t token = begin; token < end; ++token) {
      if (add_bias) {
        float* row = areas_.logits + token * choices;
        for (std::int64_t e = 0; e < choices; ++e) row[e] = row[e] + router_bias_[static_cast<std::size_t>(e)];
      }
      std::int32_t* hash = nullptr;
      if (router.selection == RouterSelection::hash) {
        hash = hash_scratch_.data() + thread * extents_.top_k;
        for (std::int64_t k = 0; k < extents_.top_k; ++k)
          hash[k] = static_cast<std::int32_t>(hash_expert(*weights_, extents_.top_k, call.input.token_ids[token], k));
      }
      route_token(RouteArgs{.spec = &router,
                            .experts = extents_.experts,
                            .top_k = extents_.top_k,
                            .logits = logits + token * choices,
                            .selection_bias = value_or_null(selection_bias_),
                            .per_expert_scale = value_or_null(per_expert_scale_),
                            .hash_experts = hash,
                            .scratch = route_scratch_.data() + thread * scratch_floats,
                            .index = areas_.index + token * extents_.top_k,
                            .weight = areas_.weights + token * extents_.top_k});
    }
  });
}

void LayerImpl::give_routing(const Call& call) const noexcept {
  const auto choices = static_cast<std::size_t>(call.tokens * extents_.top_k);
  if (choices == 0) return;
  if (call.output.top_k_index != nullptr) std::memcpy(call.output.top_k_index, areas_.index, choices * sizeof(std::int32_t));
  if (call.output.top_k_weights != nullptr) std::memcpy(call.output.top_k_weights, areas_.weights, choices * sizeof(float));
}

/// False when there are more rows than planned: another rank says that a token chose an expert twice.
bool LayerImpl::map_to_rows(Call& call) noexcept {
  const Grouping grouping{.slot = call.slot,
                          .tokens = call.mapped,
                          .top_k = call.choices,
                          .first_slot = slice_.expert_begin,
                          .slots = slice_.expert_count,
                          .first_row = areas_.first_row,
                          .row_of = areas_.row_of,
                          .token_of = areas_.token_of,
                          .load = chunk_load_.data()};
  if (dispatches() && count_rows(grouping) > max_rows_) return false;
  call.rows = group_by_slot(grouping);
  return true;
}

}  // namespace motet
