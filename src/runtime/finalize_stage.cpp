// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"
#include "runtime/finalize.h"
#include "runtime/layer_impl.h"
#include "runtime/parallel.h"

namespace motet {

Unfinalized LayerImpl::triple(const Call& call) const noexcept {
  return Unfinalized{.rows = areas_.rows,
                     .row_count = call.rows,
                     .row_stride = extents_.rows_stored,
                     .width = extents_.dispatch,
                     .row_of = areas_.row_of,
                     .expert = call.slot,
                     .weight = call.weight,
                     .tokens = call.mapped,
                     .top_k = call.choices};
}

RunStatus LayerImpl::finalize(const Call& call) noexcept {
  if (plan_.deployment.wishes.finalize == Finalize::unfinalized) {
    *call.output.unfinalized = triple(call);
    return {};
  }
  float* const sums = dispatches() ? areas_.partial : areas_.routed;
  if (hooks_.batch != nullptr) {
    const HookExtent wrote = hooks_.batch(hooks_.context, triple(call), sums);
    if (wrote.rows == call.mapped && wrote.cols == extents_.dispatch) return {};
    return make_status(ErrorCode::hook_mismatch,
                       "a batch hook must return the extent [%lld, %lld] it had to write, but it returned [%lld, %lld]; write "
                       "every row at its true width",
                       static_cast<long long>(call.mapped), static_cast<long long>(extents_.dispatch),
                       static_cast<long long>(wrote.rows), static_cast<long long>(wrote.cols));
  }
  const FinalizeArgs args{.rows = areas_.rows,
                          .rows_stride = extents_.rows_stored,
                          .width = extents_.dispatch,
                          .top_k = call.choices,
                          .row_of = areas_.row_of,
                          .expert = call.slot,
                          .weight = call.weight,
                          .rank = slice_.rank,
                          .first_token = call.chunk * extents_.chunk_tokens,
                          .sources = dispatches() ? exchange_->received().sources : std::span<const SourceRows>{},
                          .token_choices = extents_.top_k,
                          .weigh = plan_.recipe.weight_site != WeightSite::input,
                          .hook = hooks_.row,
                          .hook_context = hooks_.context,
                          .routed = sums};
  for_each_block(*executor_, call.mapped, grain_of(extents_.dispatch * call.choices),
                 [&](std::int64_t begin, std::int64_t end, int) noexcept { finalize_tokens(args, begin, end); });
  return {};
}

/// The plan's tail: token-wise steps in runs, the output projection of a latent layer and the sum over ranks in between.
RunStatus LayerImpl::run_tail(const Call& call) noexcept {
  if (plan_.deployment.wishes.finalize == Finalize::unfinalized) return {};
  TailArgs args{.value = areas_.routed,
                .width = extents_.dispatch,
                .routed_scale = static_cast<float>(plan_.spec.router.scale),
                .norm_weight = latent_norm_.empty() ? nullptr : latent_norm_.data(),
                .norm_epsilon = static_cast<float>(plan_.spec.latent_norm_epsilon),
                .shared = areas_.shared_out,
                .shared_gate = shared_gate_.empty() ? nullptr : shared_gate_.data(),
                .hidden_states = call.input.hidden_states,
                .expert = areas_.index,
                .weight = areas_.weights,
                .experts = extents_.experts,
                .top_k = extents_.top_k,
                .zero_expert_kind = plan_.spec.router.zero_expert_kind,
                .output = call.output.output};
  const std::vector<TailStep>& tail = plan_.tail;
  for (std::size_t first = 0; first < tail.size();) {
    if (tail[first].op == TailOp::latent_out) {
      const ConstMatrix routed{areas_.routed, DType::f32, call.tokens, extents_.latent};
      for_each_block(*executor_, call.tokens, grain_of(extents_.latent), [&](std::int64_t begin, std::int64_t end, int) noexcept {
        backend_->prepare_rows(routed, nullptr, nullptr, begin, end - begin, areas_.routed_x, extents_.routed_x_stride(),
                               extents_.latent_stored);
      });
      backend_->run_latent_out(DenseBatch{.x = areas_.routed_x,
                                          .x_stride = extents_.routed_x_stride(),
                                          .tokens = call.tokens,
                                          .out = areas_.routed_out,
                                          .out_stride = extents_.hidden,
                                          .scratch = areas_.scratch,
                                          .scratch_stride = areas_.scratch_stride},
                               *executor_);
      args.value = areas_.routed_out;
      args.width = extents_.hidden;
      ++first;
      continue;
    }
    if (tail[first].op == TailOp::reduce) {
      begin_step(&call);
      if (const RunStatus status = reduce(args.value); !status.ok()) return status;
      ++first;
      continue;
    }
    std::size_t last = first;
    while (last < tail.size() && tail[last].op != TailOp::latent_out && tail[last].op != TailOp::reduce) ++last;
    const std::span<const TailStep> steps(tail.data() + first, last - first);
    for_each_block(*executor_, call.tokens, grain_of(args.width * static_cast<std::int64_t>(steps.size())),
                   [&](std::int64_t begin, std::int64_t end, int) noexcept { run_tail_steps(args, steps, begin, end); });
    first = last;
  }
  return {};
}

}  // namespace motet
