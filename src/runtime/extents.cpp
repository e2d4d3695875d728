// SPDX-License-Identifier: Apache-2.0
#include "runtime/extents.h"

#include <limits>
#include <string>

#include "base/dtype.h"
#include "base/math.h"

namespace motet {
namespace {

std::int64_t stored_of(const Plan& plan, Axis axis, std::int64_t valid) {
  const Width* width = plan.width(axis);
  if (width == nullptr || width->valid != valid || width->stored < valid)
    throw Error(ErrorCode::invalid_argument,
                "the plan must store axis '" + std::string(name_of(axis)) + "' with at least its " + std::to_string(valid) +
                    " valid elements, but it has " +
                    (width == nullptr ? "no such axis"
                                      : std::to_string(width->valid) + " valid and " + std::to_string(width->stored) + " stored") +
                    "; make the plan with plan()");
  return width->stored;
}

class AreaFinder {
 public:
  AreaFinder(const Plan& plan, std::byte* workspace) : plan_(plan), workspace_(workspace) {}

  /// The area of `rows` rows of `row_bytes`, or an Error.
  template <class T>
  T* need(AreaId id, std::int64_t rows, std::int64_t row_bytes) const {
    std::int64_t needed = 0;
    const Area* area = plan_.area(id);
    const bool sized = checked_mul(rows, row_bytes, &needed);
    if (area == nullptr || !sized || area->bytes < needed || area->offset < 0 || area->bytes > plan_.workspace.bytes - area->offset)
      throw Error(
          ErrorCode::invalid_argument,
          "the plan's workspace area '" + std::string(name_of(id)) + "' must hold " + std::to_string(rows) + " rows of " +
              std::to_string(row_bytes) + " bytes inside " + std::to_string(plan_.workspace.bytes) + " bytes, but it has " +
              (area == nullptr ? "no such area" : std::to_string(area->bytes) + " bytes at " + std::to_string(area->offset)) +
              "; make the plan with plan()");
    return reinterpret_cast<T*>(workspace_ + area->offset);
  }

 private:
  const Plan& plan_;
  std::byte* workspace_;
};

}  // namespace

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
  if (!checked_mul(extents.max_tokens, extents.top_k, &extents.max_rows) ||
      extents.max_rows > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorCode::invalid_argument, "tokens * top_k must be at most 2147483647 rows on one rank, but the plan has " +
                                                 std::to_string(extents.max_tokens) + " tokens with top_k " +
                                                 std::to_string(extents.top_k) + "; plan for fewer tokens");
  extents.activation_bytes = bytes_of(plan.recipe.activation);
  extents.hidden_stored = stored_of(plan, Axis::hidden, spec.hidden);
  if (spec.latent > 0) extents.latent_stored = stored_of(plan, Axis::latent, spec.latent);
  extents.dispatch_stored = spec.latent > 0 ? extents.latent_stored : extents.hidden_stored;
  extents.act_stored = stored_of(plan, Axis::down_in, plan.ranks.at(0).intermediate_valid);
  extents.rows_stored = stored_of(plan, Axis::down_out, extents.dispatch);
  extents.shared = spec.shared.intermediate > 0;
  if (extents.shared) extents.shared_act_stored = stored_of(plan, Axis::shared, plan.ranks.at(0).shared_valid);
  return extents;
}

Areas areas_of(const Plan& plan, const Extents& extents, std::byte* workspace) {
  constexpr std::int64_t kF32 = sizeof(float), kI32 = sizeof(std::int32_t), kI64 = sizeof(std::int64_t);
  const AreaFinder find(plan, workspace);
  const std::int64_t tokens = extents.max_tokens;
  const bool finalized = plan.deployment.wishes.finalize != Finalize::unfinalized;
  Areas areas;
  areas.logits = find.need<float>(AreaId::logits, tokens, extents.choices() * kF32);
  areas.index = find.need<std::int32_t>(AreaId::top_k_index, tokens, extents.top_k * kI32);
  areas.weights = find.need<float>(AreaId::top_k_weights, tokens, extents.top_k * kF32);
  areas.first_row = find.need<std::int64_t>(AreaId::counts, extents.experts + 1, kI64);
  areas.row_of = find.need<std::int32_t>(AreaId::row_of, tokens, extents.top_k * kI32);
  areas.token_of = find.need<std::int32_t>(AreaId::token_of, extents.max_rows, kI32);
  areas.permuted = find.need<std::byte>(AreaId::permuted, extents.max_rows, extents.permuted_stride());
  areas.act = find.need<std::byte>(AreaId::act, extents.max_rows, extents.act_stride());
  areas.rows = find.need<float>(AreaId::rows, extents.max_rows, extents.rows_stored * kF32);
  if (finalized) areas.routed = find.need<float>(AreaId::routed, tokens, extents.dispatch * kF32);
  if (extents.latent > 0 || (extents.shared && finalized)) areas.x = find.need<std::byte>(AreaId::x, tokens, extents.x_stride());
  if (extents.latent > 0) areas.latent_x = find.need<float>(AreaId::latent_x, tokens, extents.latent * kF32);
  if (extents.latent > 0 && finalized) {
    areas.routed_x = find.need<std::byte>(AreaId::routed_x, tokens, extents.routed_x_stride());
    areas.routed_out = find.need<float>(AreaId::routed_out, tokens, extents.hidden * kF32);
  }
  if (extents.shared && finalized) {
    areas.shared_act = find.need<std::byte>(AreaId::shared_act, tokens, extents.shared_act_stride());
    areas.shared_out = find.need<float>(AreaId::shared_out, tokens, extents.hidden * kF32);
  }
  if (const Area* scratch = plan.area(AreaId::scratch); scratch != nullptr && plan.threads > 0) {
    areas.scratch = find.need<std::byte>(AreaId::scratch, plan.threads, 0);
    areas.scratch_stride = round_down(scratch->bytes / plan.threads, 64);
  }
  return areas;
}

}  // namespace motet
