// SPDX-License-Identifier: Apache-2.0
#include "runtime/extents.h"

#include <type_traits>

#include "base/dtype.h"
#include "base/math.h"

namespace motet {

Extents extents_of(const Plan& plan) {
  const LayerSpec& spec = plan.spec;
  Extents extents;
  extents.hidden = spec.hidden;
  extents.latent = spec.latent;
  extents.dispatch = spec.dispatch_width();
  extents.experts = spec.experts;
  extents.zero_experts = spec.router.zero_experts;
  extents.top_k = spec.top_k;
  extents.max_tokens = plan.deployment.tokens;
  extents.chunk_tokens = plan.deployment.at_once();
  extents.activation_bytes = bytes_of(plan.recipe.activation);
  extents.hidden_stored = plan.stored(Axis::hidden);
  extents.latent_stored = plan.stored(Axis::latent);
  extents.dispatch_stored = spec.latent > 0 ? extents.latent_stored : extents.hidden_stored;
  extents.act_stored = plan.stored(Axis::down_in);
  extents.rows_stored = plan.stored(Axis::down_out);
  extents.shared_act_stored = plan.stored(Axis::shared);
  return extents;
}

Areas areas_of(const Plan& plan, std::byte* workspace) {
  const auto place = [&](AreaId id, auto*& pointer) {
    if (const Area* area = plan.area(id))
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(workspace + area->offset);
  };
  Areas areas;
  place(AreaId::logits, areas.logits);
  place(AreaId::top_k_index, areas.index);
  place(AreaId::top_k_weights, areas.weights);
  place(AreaId::counts, areas.first_row);
  place(AreaId::row_of, areas.row_of);
  place(AreaId::token_of, areas.token_of);
  place(AreaId::x, areas.x);
  place(AreaId::latent_x, areas.latent_x);
  place(AreaId::permuted, areas.permuted);
  place(AreaId::act, areas.act);
  place(AreaId::permuted_codes, areas.permuted_codes);
  place(AreaId::permuted_scales, areas.permuted_scales);
  place(AreaId::act_codes, areas.act_codes);
  place(AreaId::act_scales, areas.act_scales);
  place(AreaId::linear_scales, areas.linear_scales);
  place(AreaId::rows, areas.rows);
  place(AreaId::partial, areas.partial);
  place(AreaId::routed, areas.routed);
  place(AreaId::routed_x, areas.routed_x);
  place(AreaId::routed_out, areas.routed_out);
  place(AreaId::shared_act, areas.shared_act);
  place(AreaId::shared_out, areas.shared_out);
  place(AreaId::scratch, areas.scratch);
  if (areas.scratch != nullptr) areas.scratch_stride = round_down(plan.area(AreaId::scratch)->bytes / plan.threads, 64);
  return areas;
}

}  // namespace motet
