// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/fp_state.h"
#include "base/status.h"
#include "runtime/input_check.h"
#include "runtime/layer_impl.h"
#include "runtime/rows.h"

namespace motet {
namespace {

using Clock = std::chrono::steady_clock;

/// Tokens [first, first + count) of the arguments.
ForwardInput chunk_of(const ForwardInput& all, std::int64_t top_k, std::int64_t first, std::int64_t count) noexcept {
  ForwardInput chunk = all;
  chunk.hidden_states = rows_of(all.hidden_states, first, count);
  if (all.router_logits.data != nullptr) chunk.router_logits = rows_of(all.router_logits, first, count);
  if (all.top_k_index != nullptr) chunk.top_k_index += first * top_k;
  if (all.top_k_weights != nullptr) chunk.top_k_weights += first * top_k;
  if (all.token_ids != nullptr) chunk.token_ids += first;
  return chunk;
}
ForwardOutput chunk_of(const ForwardOutput& all, std::int64_t top_k, std::int64_t first, std::int64_t count) noexcept {
  ForwardOutput chunk = all;
  if (all.output.data != nullptr) chunk.output = rows_of(all.output, first, count);
  if (all.top_k_index != nullptr) chunk.top_k_index += first * top_k;
  if (all.top_k_weights != nullptr) chunk.top_k_weights += first * top_k;
  return chunk;
}

double seconds_since(Clock::time_point begin) noexcept { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

RunStatus LayerImpl::forward(const ForwardInput& input, const ForwardOutput& output) noexcept {
  const DefaultFpState fp_state;
  const Clock::time_point begin = Clock::now();
  step_begun_ = false;
  RunStatus status = check_forward_arguments(plan_, extents_, *weights_, input, output);
  if (status.ok()) status = weights_->verify_unchanged();
  if (!status.ok()) {
    leave_step();
    return status;
  }
  stats_ = {};
  std::fill(load_.begin(), load_.end(), 0);
  std::fill(peers_.begin(), peers_.end(), PeerStats{});
  stats_.seconds[static_cast<int>(StageId::input)] = seconds_since(begin);
  const std::int64_t tokens = input.hidden_states.rows, at_once = extents_.chunk_tokens;
  std::int64_t most_tokens = tokens;  // of any rank: all run as many chunks (L9)
  for (std::int64_t chunk = 0; chunk == 0 || chunk * at_once < most_tokens; ++chunk) {
    const std::int64_t first = std::min(chunk * at_once, tokens), count = std::min(at_once, tokens - first);
    const ForwardInput chunk_input = chunk_of(input, extents_.top_k, first, count);
    const ForwardOutput chunk_output = chunk_of(output, extents_.top_k, first, count);
    Call call{.input = chunk_input, .output = chunk_output, .tokens = count, .chunk = chunk, .forward_tokens = tokens};
    call.ran_router = input.top_k_index == nullptr && input.router_logits.data == nullptr && weights_->router.codes != nullptr;
    step_begun_ = false;
    if (poison_ != nullptr) poison_->before_forward();
    if (status = run_stages(call); !status.ok()) {
      leave_step();
      return status;
    }
    count_work(call);
    if (dispatches()) most_tokens = exchange_->forward_tokens();
  }
  for (const std::int64_t rows : load_) stats_.experts_used += rows > 0 ? 1 : 0;
  stats_.total_seconds = seconds_since(begin);
  return {};
}

void LayerImpl::enter(StageId stage) noexcept {
  if (poison_ != nullptr) poison_->enter(stage);
  stage_begin_ = Clock::now();
}

void LayerImpl::leave(StageId stage) noexcept {
  stats_.seconds[static_cast<int>(stage)] += seconds_since(stage_begin_);
  if (poison_ != nullptr) poison_->leave(stage);
}

/// The stages of docs/architecture.md, in order, each run whatever the number of tokens (L9). Where ranks dispatch, rows are mapped
/// and prepared where they come.
RunStatus LayerImpl::run_stages(Call& call) noexcept {
  RunStatus status;
  const auto stage = [&](StageId id, auto&& body) noexcept {
    enter(id);
    body();
    leave(id);
  };
  call.mapped = call.tokens;
  call.choices = extents_.top_k;
  call.slot = areas_.index;
  call.weight = areas_.weights;
  stage(StageId::shared, [&] { run_shared(call); });
  stage(StageId::route, [&] { route(call); });
  if (!dispatches()) stage(StageId::map, [&] { map_to_rows(call); });
  stage(StageId::latent_in, [&] { latent_in(call); });
  if (dispatches())
    stage(StageId::dispatch, [&] { status = dispatch(call); });
  else
    stage(StageId::prepare, [&] { prepare(call); });
  if (!status.ok()) return status;
  if (status = check_padding(call); !status.ok()) return status;
  stage(StageId::experts, [&] { run_experts(call); });
  stage(StageId::finalize, [&] { status = finalize(call); });
  if (!status.ok()) return status;
  if (dispatches()) stage(StageId::combine, [&] { status = combine(); });
  if (!status.ok()) return status;
  stage(StageId::tail, [&] { status = run_tail(call); });
  return status.ok() ? check_canaries() : status;
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
  return spans_read(*rank_weights_, {.expert_rows = load_.data() + slice_.expert_begin,
                                     .packed = packed,
                                     .shared = any && areas_.shared_out != nullptr,
                                     .router = any && ran_router_,
                                     .latent_in = any && extents_.latent > 0,
                                     .latent_out = any && areas_.routed_out != nullptr});
}

void LayerImpl::count_work(const Call& call) noexcept {
  stats_.tokens += call.tokens;
  ran_router_ = call.ran_router;
  stats_.rows += call.rows;
  for (std::size_t e = 0; e < costs_.expert_bytes.size(); ++e) {
    if (chunk_load_[e] == 0) continue;
    load_[static_cast<std::size_t>(slice_.expert_begin) + e] += chunk_load_[e];
    stats_.weight_bytes += costs_.expert_bytes[e];
  }
  if (exchange_ != nullptr) count_exchange();
  stats_.flops += costs_.expert_flops * static_cast<double>(call.rows);
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
