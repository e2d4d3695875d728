// SPDX-License-Identifier: Apache-2.0
// Sizes of an exchange: how many rows move in one step, and how long its messages are. Pure; sums and products saturate above
// kLargestSize, which plan() and the exchange itself refuse.
#pragma once

#include <span>

#include "plan/catalog.h"

namespace motet {

/// What the sizes follow from.
struct ExchangeExtents {
  std::int64_t ranks = 1;
  std::int64_t holders = 1;  ///< most ranks that hold one slot
  std::int64_t tokens = 0;   ///< most of any rank
  std::int64_t top_k = 1;
  std::int64_t width = 0;                         ///< elements of a row that comes back
  bool two_sided = false;                         ///< of the fabric
  DType wire = DType::f32;                        ///< of that row: f32 or bf16
  std::span<const std::int64_t> part_bytes = {};  ///< of one token, for each part of the payload
};

struct ExchangeSizes {
  std::int64_t choices = 0;                            ///< of a row; 0 where nothing is dispatched
  std::int64_t rows_to_rank = 0;                       ///< most, from one rank to another
  std::int64_t rows_sent = 0;                          ///< most, of one rank to all
  std::int64_t rows_received = 0;                      ///< most, of one rank from all
  std::int64_t dispatch_bytes = 0, combine_bytes = 0;  ///< longest messages
  std::int64_t mailbox_bytes = 0;                      ///< of one rank: slots of both messages, for all ranks and two steps
  std::int64_t handle_bytes = 0;                       ///< what one rank remembers of a step
};
ExchangeSizes exchange_sizes(const StrategyTraits& strategy, const ExchangeExtents& extents);

/// What a plan says of its exchange. `strategy` as chosen; Share and slices as in plan/slices.h.
ExchangePlan make_exchange(const StrategyTraits& strategy, const FabricTraits& fabric, const LayerSpec& spec,
                           const Deployment& deployment, DType wire, std::int64_t tokens);
/// Hidden states of one row as they are dispatched: exactly what experts would be given on one rank.
std::int64_t hidden_row_bytes(const LayerSpec& spec, const Deployment& deployment) noexcept;

/// A message: a header, then for each kind of record a run of its own. Both begin at multiples of this.
inline constexpr std::int64_t kMessageAlign = 64;
/// Bytes of a message of `rows` rows whose runs hold `row_bytes` of each.
std::int64_t message_bytes(std::int64_t rows, std::span<const std::int64_t> row_bytes) noexcept;
/// Bytes of a dispatched row in each run: its choice, its slots, its weights, then the parts.
std::vector<std::int64_t> dispatched_row_bytes(std::int64_t choices, std::span<const std::int64_t> part_bytes);

/// Of one mailbox whose messages have at most `bytes`, for one rank: slots for two steps that every rank writes, and their states;
/// on a two-sided fabric also those that this rank writes for the others.
std::int64_t mailbox_bytes(std::int64_t ranks, std::int64_t bytes, bool two_sided) noexcept;

}  // namespace motet
