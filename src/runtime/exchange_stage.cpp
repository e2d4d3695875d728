// SPDX-License-Identifier: Apache-2.0
// Dispatch, combine and the sum over ranks: where a forward meets the other ranks.
#include <algorithm>
#include <cstdio>

#include "base/status.h"
#include "runtime/layer_impl.h"
#include "runtime/parallel.h"
#include "runtime/rows.h"

namespace motet {

/// Every chunk of a forward is one step of the exchange, with tokens or without (L9). Null: a step without tokens, to be left.
void LayerImpl::begin_step(const Call* call) noexcept {
  Outgoing outgoing;
  const std::byte* part = nullptr;
  if (call != nullptr) {
    outgoing.tokens = call->tokens;
    outgoing.chunk = call->chunk;
    outgoing.forward_tokens = call->forward_tokens;
    outgoing.slot = slots_.empty() ? areas_.index : slots_.data();
    outgoing.weight = areas_.weights;
    part = extents_.latent == 0 ? static_cast<const std::byte*>(call->input.hidden_states.data)
                                : reinterpret_cast<const std::byte*>(areas_.latent_x);
  }
  if (dispatches()) outgoing.parts = {&part_, 1};
  part_ = part;
  step_begun_ = true;
  exchange_->begin(outgoing, group_->deadline());
}

/// Rows to the ranks of their experts; those that came are mapped and prepared.
RunStatus LayerImpl::dispatch(Call& call) noexcept {
  // Ids of zero experts are nobody's rows.
  for (std::int64_t i = 0; !slots_.empty() && i < call.tokens * extents_.top_k; ++i)
    slots_[static_cast<std::size_t>(i)] = areas_.index[i] < extents_.experts ? areas_.index[i] : kAbsent;
  begin_step(&call);
  if (exchange_->wait() != StepState::received) return step_status();
  const Received& received = exchange_->received();
  call.mapped = received.rows;
  call.choices = received.choices;
  call.slot = received.slot;
  call.weight = received.weight;
  if (!map_to_rows(call))
    return make_status(
        ErrorCode::ranks_disagree,
        "a token may choose an expert once, so that rank %lld gets at most %lld rows, but more came; a rank sends what "
        "its plan does not say",
        static_cast<long long>(slice_.rank), static_cast<long long>(max_rows_));
  prepare_received(call);
  return {};
}

void LayerImpl::prepare_received(const Call& call) noexcept {
  const std::span<const SourceRows> sources = exchange_->received().sources;
  const std::int64_t stride = extents_.permuted_stride(), stored = extents_.dispatch_stored;
  const DType dtype = extents_.latent == 0 ? plan_.deployment.input : DType::f32;
  const bool weigh = plan_.recipe.weight_site == WeightSite::input;
  for_each_block(*executor_, call.mapped, grain_of(extents_.dispatch), [&](std::int64_t begin, std::int64_t end, int) noexcept {
    const auto after = std::upper_bound(sources.begin(), sources.end(), begin,
                                        [](std::int64_t row, const SourceRows& source) { return row < source.first; });
    auto source = after - 1;
    for (std::int64_t came = begin; came < end; ++came) {
      while (came >= source->first + source->rows) ++source;
      const auto index = static_cast<std::int32_t>(source->place(came - source->first));
      const ConstMatrix rows{source->parts[0], dtype, index + 1, extents_.dispatch};
      for (std::int64_t choice = came * call.choices; choice < (came + 1) * call.choices; ++choice) {
        const std::int64_t row = areas_.row_of[choice];
        if (row < 0) continue;
        backend_->prepare_rows(rows, &index, weigh ? call.weight + choice : nullptr, 0, 1, areas_.permuted + row * stride, stride,
                               stored);
      }
    }
  });
}

RunStatus LayerImpl::combine() noexcept {
  exchange_->combine(areas_.partial, extents_.dispatch, areas_.routed);
  return exchange_->wait() == StepState::idle ? RunStatus{} : step_status();
}

/// The sum over ranks of [tokens, width], in place: replicated tokens.
RunStatus LayerImpl::reduce(float* values) noexcept {
  exchange_->combine(values, plan_.exchange.width, values);
  return exchange_->wait() == StepState::idle ? RunStatus{} : step_status();
}

/// This rank's forward ends early: so does that of the others, unless its step is over.
void LayerImpl::leave_step() noexcept {
  if (exchange_ == nullptr) return;
  if (!step_begun_) begin_step(nullptr);
  if (exchange_->state() != StepState::idle && exchange_->state() != StepState::failed) exchange_->abandon();
}

RunStatus LayerImpl::step_status() const noexcept {
  char ranks[128] = "";
  std::size_t used = 0;
  for (const Rank rank : exchange_->missing()) {
    if (used + 16 > sizeof ranks) break;
    used += static_cast<std::size_t>(std::snprintf(ranks + used, sizeof ranks - used, "%s%d", used > 0 ? ", " : "", rank));
  }
  switch (exchange_->failure()) {
    case StepFailure::timeout:
      return make_status(
          ErrorCode::rank_missing,
          "every rank must come to a step by its deadline, but rank %s did not; look what became of it, or allow more time", ranks);
    case StepFailure::contract_mismatch:
      return make_status(
          ErrorCode::ranks_disagree,
          "ranks must run the same layers in the same order with as many tokens as their placement says, but what rank %s "
          "sent is of another layer or size; give all ranks the same calls",
          ranks);
    default:
      return make_status(ErrorCode::step_left,
                         "a step ends whole or not at all, and it was given up because of rank %s; see what it says", ranks);
  }
}

void LayerImpl::count_exchange() noexcept {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    peers_[rank].bytes_sent += exchange_->bytes_sent(static_cast<Rank>(rank));
    peers_[rank].seconds_waited += std::chrono::duration<double>(exchange_->waited(static_cast<Rank>(rank))).count();
  }
}

}  // namespace motet
