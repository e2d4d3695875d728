// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/layer_impl.h"
#include "runtime/parallel.h"

namespace motet {

/// Prepared hidden states for the shared expert and the latent projection.
void LayerImpl::prepare_x(const Call& call) noexcept {
  for_each_block(*executor_, call.tokens, grain_of(extents_.hidden), [&](std::int64_t begin, std::int64_t end, int) noexcept {
    backend_->prepare_rows(call.input.hidden_states, nullptr, nullptr, begin, end - begin, areas_.x, extents_.x_stride(),
                           extents_.hidden_stored);
  });
}

/// The shared expert is one slot that holds all tokens. Its prepared hidden states stay for latent_in.
void LayerImpl::run_shared(const Call& call) noexcept {
  if (areas_.shared_out == nullptr) return;
  prepare_x(call);
  if (slice_.shared_valid == 0) {  // no unit was left for this rank
    std::fill_n(areas_.shared_out, call.tokens * extents_.hidden, 0.0f);
    return;
  }
  shared_rows_[1] = call.tokens;
  backend_->run_shared(ExpertBatch{.x = areas_.x,
                                   .x_stride = extents_.x_stride(),
                                   .first_row = shared_rows_,
                                   .slots = 1,
                                   .act = areas_.shared_act,
                                   .act_stride = extents_.shared_act_stride(),
                                   .rows = areas_.shared_out,
                                   .rows_stride = extents_.hidden,
                                   .scratch = areas_.scratch,
                                   .scratch_stride = areas_.scratch_stride},
                       *executor_);
}

void LayerImpl::latent_in(const Call& call) noexcept {
  if (extents_.latent == 0) return;
  if (areas_.shared_out == nullptr) prepare_x(call);
  backend_->run_latent_in(DenseBatch{.x = areas_.x,
                                     .x_stride = extents_.x_stride(),
                                     .tokens = call.tokens,
                                     .out = areas_.latent_x,
                                     .out_stride = extents_.latent,
                                     .scratch = areas_.scratch,
                                     .scratch_stride = areas_.scratch_stride},
                          *executor_);
}

/// Pads and quantises the rows that experts read, sorted by slot. With input weighting each row is its token times the weight.
void LayerImpl::prepare(const Call& call) noexcept {
  const ConstMatrix source =
      extents_.latent == 0 ? call.input.hidden_states : ConstMatrix{areas_.latent_x, DType::f32, call.tokens, extents_.latent};
  const std::int64_t stride = extents_.permuted_stride(), stored = extents_.dispatch_stored;
  const std::int64_t grain = grain_of(extents_.dispatch);
  if (plan_.recipe.weight_site != WeightSite::input) {
    for_each_block(*executor_, call.rows, grain, [&](std::int64_t begin, std::int64_t end, int) noexcept {
      backend_->prepare_rows(source, areas_.token_of, nullptr, begin, end - begin, areas_.permuted, stride, stored);
    });
    return;
  }
  for_each_block(*executor_, call.tokens * extents_.top_k, grain, [&](std::int64_t begin, std::int64_t end, int) noexcept {
    for (std::int64_t choice = begin; choice < end; ++choice) {
      const std::int64_t row = areas_.row_of[choice];
      if (row < 0) continue;
      const auto token = static_cast<std::int32_t>(choice / extents_.top_k);
      backend_->prepare_rows(source, &token, areas_.weights + choice, 0, 1, areas_.permuted + row * stride, stride, stored);
    }
  });
}

void LayerImpl::run_experts(const Call&) noexcept {
  backend_->run_experts(ExpertBatch{.x = areas_.permuted,
                                    .x_stride = extents_.permuted_stride(),
                                    .first_row = areas_.first_row,
                                    .slots = slice_.expert_count,
                                    .act = areas_.act,
                                    .act_stride = extents_.act_stride(),
                                    .rows = areas_.rows,
                                    .rows_stride = extents_.rows_stored,
                                    .scratch = areas_.scratch,
                                    .scratch_stride = areas_.scratch_stride,
                                    .quantised_x = {areas_.permuted_codes, areas_.permuted_scales},
                                    .quantised_act = {areas_.act_codes, areas_.act_scales},
                                    .linear_scales = areas_.linear_scales},
                        *executor_);
}

}  // namespace motet
