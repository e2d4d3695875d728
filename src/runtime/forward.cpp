// SPDX-License-Identifier: Apache-2.0
#include "base/fp_state.h"
#include "base/status.h"
#include "runtime/input_check.h"
#include "runtime/layer_impl.h"

namespace motet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) noexcept { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

RunStatus LayerImpl::forward(const ForwardInput& input, const ForwardOutput& output) noexcept {
  const DefaultFpState fp_state;
  const Clock::time_point begin = Clock::now();
  if (RunStatus status = check_forward_arguments(plan_, extents_, *weights_, input, output); !status.ok()) return status;
  if (RunStatus status = weights_->verify_unchanged(); !status.ok()) return status;

  Call call{.input = input, .output = output, .tokens = input.hidden_states.rows};
  call.ran_router = input.top_k_index == nullptr && input.router_logits.data == nullptr && weights_->router.codes != nullptr;
  stats_ = {};
  stats_.seconds[static_cast<int>(StageId::input)] = seconds_since(begin);
  if (poison_ != nullptr) poison_->before_forward();
  if (RunStatus status = run_stages(call); !status.ok()) return status;
  count_work(call);
  stats_.total_seconds = seconds_since(begin);
  return {};
}

void LayerImpl::enter(StageId stage) noexcept {
  if (poison_ != nullptr) poison_->enter(stage);
  stage_begin_ = Clock::now();
}

void LayerImpl::leave(StageId stage) noexcept {
  stats_.seconds[static_cast<int>(stage)] = seconds_since(stage_begin_);
  if (poison_ != nullptr) poison_->leave(stage);
}

/// The stages of docs/architecture.md, in order, each run whatever the number of tokens (L9). Dispatch and combine carry nothing on
/// one rank.
RunStatus LayerImpl::run_stages(Call& call) noexcept {
  const auto stage = [&](StageId id, auto&& body) noexcept {
    enter(id);
    body();
    leave(id);
  };
  RunStatus status;
  stage(StageId::shared, [&] { run_shared(call); });
  stage(StageId::route, [&] { route(call); });
  stage(StageId::map, [&] { map_to_rows(call); });
  stage(StageId::latent_in, [&] { latent_in(call); });
  stage(StageId::prepare, [&] { prepare(call); });
  stage(StageId::dispatch, [] {});
  if (status = check_padding(call); !status.ok()) return status;
  stage(StageId::experts, [&] { run_experts(call); });
  stage(StageId::finalize, [&] { status = finalize(call); });
  if (!status.ok()) return status;
  stage(StageId::combine, [] {});
  stage(StageId::tail, [&] { run_tail(call); });
  return check_canaries();
}

/// Experts read the padding of their rows as part of a reduction: it is zero (L4). Checked in poisoned layers only.
RunStatus LayerImpl::check_padding(const Call& call) const noexcept {
  if (poison_ == nullptr) return {};
  const std::int64_t row = first_unclean_padding(areas_.permuted, call.rows, extents_.permuted_stride(), extents_.dispatch,
                                                 extents_.dispatch_stored, extents_.activation_bytes);
  if (row < 0) return {};
  return make_status(
      ErrorCode::internal,
      "elements %lld..%lld of a prepared row must be zero, but row %lld holds others; this is a bug of the backend '%s'",
      static_cast<long long>(extents_.dispatch), static_cast<long long>(extents_.dispatch_stored - 1), static_cast<long long>(row),
      plan_.backend.c_str());
}

RunStatus LayerImpl::check_canaries() const noexcept {
  const char* area = poison_ == nullptr ? nullptr : poison_->broken_canary();
  if (area == nullptr) return {};
  return make_status(ErrorCode::internal,
                     "bytes behind workspace area '%s' must never be written, but they were; this is a bug of Motet", area);
}

std::vector<ByteSpan> LayerImpl::weights_read() const {
  const bool any = stats_.tokens > 0;
  const ByteSpan packed = any ? backend_->packed_weights() : ByteSpan{};
  return spans_read(*weights_, {.expert_rows = load_.data(),
                                .packed = packed,
                                .shared = any && areas_.shared_out != nullptr,
                                .router = any && ran_router_,
                                .latent_in = any && extents_.latent > 0,
                                .latent_out = any && areas_.routed_out != nullptr});
}

void LayerImpl::count_work(const Call& call) noexcept {
  stats_.tokens = call.tokens;
  ran_router_ = call.ran_router;
  stats_.rows = call.rows;
  for (std::size_t e = 0; e < load_.size(); ++e) {
    if (load_[e] == 0) continue;
    ++stats_.experts_used;
    stats_.weight_bytes += costs_.expert_bytes[e];
  }
  stats_.flops = costs_.expert_flops * static_cast<double>(call.rows);
  if (call.tokens == 0) return;
  const auto tokens = static_cast<double>(call.tokens);
  if (areas_.shared_out != nullptr) {
    stats_.weight_bytes += costs_.shared_bytes;
    stats_.flops += costs_.shared_flops * tokens;
  }
  if (call.ran_router) {
    stats_.weight_bytes += costs_.router_bytes;
    stats_.flops += costs_.router_flops * tokens;
  }
  stats_.weight_bytes += costs_.latent_in_bytes;
  stats_.flops += costs_.latent_flops * tokens;
  if (areas_.routed_out == nullptr) return;  // rows left unfinalized do not come out of the latent space here
  stats_.weight_bytes += costs_.latent_out_bytes;
  stats_.flops += costs_.latent_flops * tokens;
}

}  // namespace motet
