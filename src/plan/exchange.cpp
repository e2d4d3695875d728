// SPDX-License-Identifier: Apache-2.0
#include "plan/exchange.h"

#include <algorithm>

#include "base/math.h"
#include "plan/sizes.h"
#include "plan/slices.h"

namespace motet {
namespace {

using std::int64_t;

constexpr int64_t kTooLarge = kLargestSize + 1;

int64_t bounded_sum(int64_t a, int64_t b) noexcept { return std::min(a + b, kTooLarge); }
int64_t aligned(int64_t bytes) noexcept { return std::min(round_up(bytes, kMessageAlign), kTooLarge); }

}  // namespace

std::vector<int64_t> dispatched_row_bytes(int64_t choices, std::span<const int64_t> part_bytes) {
  std::vector<int64_t> runs{4, bounded_product({4, choices}), bounded_product({4, choices})};
  runs.insert(runs.end(), part_bytes.begin(), part_bytes.end());
  return runs;
}

int64_t message_bytes(int64_t rows, std::span<const int64_t> row_bytes) noexcept {
  int64_t total = kMessageAlign;
  for (const int64_t bytes : row_bytes) total = bounded_sum(total, aligned(bounded_product({rows, bytes})));
  return total;
}

int64_t mailbox_bytes(int64_t ranks, int64_t bytes, bool two_sided) noexcept {
  constexpr int64_t kSlotAlign = 128;
  return bounded_product({2, two_sided ? 2 * ranks - 1 : ranks, std::min(round_up(bytes, kSlotAlign) + kSlotAlign, kTooLarge)});
}

ExchangeSizes exchange_sizes(const StrategyTraits& strategy, const ExchangeExtents& extents) {
  ExchangeSizes sizes;
  const bool by_choice = strategy.unit == RowUnit::token_expert, dispatches = strategy.unit != RowUnit::none;
  const int64_t reached = std::min(bounded_product({extents.top_k, extents.holders}), by_choice ? kTooLarge : extents.ranks);
  const int64_t everywhere = bounded_product({extents.tokens, extents.ranks});
  sizes.rows_to_rank = by_choice ? bounded_product({extents.tokens, extents.top_k}) : extents.tokens;
  sizes.rows_sent = by_choice || strategy.unit == RowUnit::token_rank ? bounded_product({extents.tokens, reached}) : everywhere;
  const int64_t back = bounded_product({extents.width, bits_of(extents.wire) / 8});
  sizes.combine_bytes = message_bytes(sizes.rows_to_rank, {&back, 1});
  sizes.handle_bytes = bounded_product({4, sizes.rows_sent});
  sizes.mailbox_bytes = mailbox_bytes(extents.ranks, sizes.combine_bytes, extents.two_sided);
  if (!dispatches) return sizes;
  sizes.choices = by_choice ? 1 : extents.top_k;
  sizes.rows_received = bounded_product({sizes.rows_to_rank, extents.ranks});
  sizes.dispatch_bytes = message_bytes(sizes.rows_to_rank, dispatched_row_bytes(sizes.choices, extents.part_bytes));
  sizes.mailbox_bytes = bounded_sum(sizes.mailbox_bytes, mailbox_bytes(extents.ranks, sizes.dispatch_bytes, extents.two_sided));
  sizes.handle_bytes = bounded_sum(sizes.handle_bytes, bounded_product({8, sizes.rows_received, sizes.choices}));
  return sizes;
}

int64_t hidden_row_bytes(const LayerSpec& spec, const Deployment& deployment) noexcept {
  const DType dtype = spec.latent > 0 ? DType::f32 : deployment.input;
  return bounded_product({spec.dispatch_width(), bits_of(dtype) / 8});
}

ExchangePlan make_exchange(const StrategyTraits& strategy, const FabricTraits& fabric, const LayerSpec& spec,
                           const Deployment& deployment, DType wire, int64_t tokens) {
  ExchangePlan plan;
  const int64_t row_bytes = hidden_row_bytes(spec, deployment);
  // A partial shared expert is in the one sum over ranks, which is then of the output's width.
  plan.width = shared_is_sliced(spec, deployment) ? spec.hidden : spec.dispatch_width();
  const ExchangeSizes sizes = exchange_sizes(strategy, {.ranks = deployment.tp * deployment.ep,
                                                        .holders = deployment.tp,
                                                        .tokens = tokens,
                                                        .top_k = spec.top_k,
                                                        .width = plan.width,
                                                        .two_sided = fabric.two_sided,
                                                        .wire = wire,
                                                        .part_bytes = {&row_bytes, 1}});
  plan.row_bytes = strategy.unit == RowUnit::none ? 0 : row_bytes;
  plan.choices = sizes.choices;
  plan.rows_to_rank = sizes.rows_to_rank;
  plan.rows = sizes.rows_received;
  plan.dispatch_bytes = sizes.dispatch_bytes;
  plan.combine_bytes = sizes.combine_bytes;
  plan.mailboxes = sizes.mailbox_bytes;
  plan.handles = sizes.handle_bytes;
  return plan;
}

}  // namespace motet
