// SPDX-License-Identifier: Apache-2.0
// One layer's exchange on one rank: a machine that is polled, step after step, by every rank of the group.
//
//   idle -> begin() -> dispatching -> received -> combine() -> combining -> idle
//                           \-> failed <-------------------------/      (begin() starts the next step all the same)
//
// Every rank runs every step, with or without tokens (L9). A message is the rows for one rank, maybe none, behind a header that
// tells the contract: ranks that differ fail together. A step that fails is poisoned, so that the others end too (L19).
// Results depend on rows and shape alone, never on the order of arrival (L15).
#pragma once

#include <span>

#include "comm/strategy.h"
#include "fabric/fabric.h"

namespace motet {

inline constexpr int kMaxParts = 4;

/// What all ranks agree on.
struct ExchangeShape {
  std::int64_t max_tokens = 0;  ///< of any rank, in any step; times top_k below 2^31
  std::int64_t top_k = 1;
  std::int64_t width = 0;                     ///< of the rows that come back, fp32 elements
  DType wire = DType::f32;                    ///< of the rows that come back: f32 or bf16, rounded once
  std::vector<std::int32_t> first_slot = {};  ///< [ranks + 1]: rank r has slots [first_slot[r], first_slot[r + 1]), maybe none
  std::vector<std::int64_t> part_bytes =
      {};                      ///< of one token, for each part of the payload: values, scales, ...; at most kMaxParts
  std::uint64_t contract = 0;  ///< hash of all else that must be equal, such as the plan's fingerprint
};

/// This rank's tokens. Borrowed until the step is done.
struct Outgoing {
  std::int64_t tokens = 0;
  const std::int32_t* slot = nullptr;            ///< [tokens, top_k]; -1 = nobody
  const float* weight = nullptr;                 ///< [tokens, top_k]
  std::span<const std::byte* const> parts = {};  ///< token t of part p at parts[p] + t * part_bytes[p]
};

/// Rows of one rank's tokens, as they lie in the fabric's memory.
struct SourceRows {
  std::int64_t first = 0, rows = 0;        ///< in the order of all received rows
  const std::byte* parts[kMaxParts] = {};  ///< [rows, part_bytes]
  const std::int32_t* choice = nullptr;    ///< [rows]: token * top_k + k where a row is a choice, else the token
};

/// What came, in order of (rank, token, k). Valid until the step is done or failed.
struct Received {
  std::int64_t rows = 0;
  std::int64_t choices = 1;                  ///< of each row: top_k, or 1 where a row is a choice
  const std::int32_t* slot = nullptr;        ///< [rows, choices]: this rank's slots from 0 on; -1 = not here
  const float* weight = nullptr;             ///< [rows, choices]; 1 where the token's rank will weigh
  std::span<const SourceRows> sources = {};  ///< [ranks]
};

enum class StepState { idle, dispatching, received, combining, failed };

/// Why a step failed. The names are stable.
enum class StepFailure { none, timeout, poisoned, contract_mismatch, abandoned };
std::string_view name_of(StepFailure failure) noexcept;

/// One thread at a time. Allocates when it is made, then no more.
class Exchange {
 public:
  /// Collective: opens mailboxes on the endpoint, which must outlive this. Throws Error(would_not_fit).
  Exchange(const StrategyTraits& strategy, const ExchangeShape& shape, Endpoint& endpoint);
  /// A step that is under way is poisoned.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Starts the next step. Requires idle or failed; tokens in [0, max_tokens], slots in [-1, all slots).
  void begin(const Outgoing& outgoing, FabricTime deadline) noexcept;
  /// Drives the step without waiting. Returns the state.
  StepState poll() noexcept;
  /// Polls until the state is no longer `dispatching` or `combining`: by the deadline at the latest.
  StepState wait() noexcept;

  /// Requires `received`.
  const Received& received() const noexcept;
  /// Sends back rows[i], fp32, one for each received row (zeros for a row without a slot here), `width` elements from
  /// rows + i * stride on; poll() writes the routed sums, fp32 [tokens, width], to `routed` before the state is idle. Both are
  /// borrowed until then. Requires `received`.
  void combine(const float* rows, std::int64_t stride, float* routed) noexcept;
  /// Leaves the step: the other ranks end it as poisoned. Requires a step under way.
  void abandon() noexcept;

  StepState state() const noexcept { return state_; }
  StepFailure failure() const noexcept { return failure_; }
  /// Ranks that the failed step lacks: late, gone, or of another contract; of a poisoned step, the ranks that began it.
  std::span<const Rank> missing() const noexcept { return missing_; }
  std::int64_t bytes_sent(Rank to) const noexcept { return bytes_sent_[static_cast<std::size_t>(to)]; }  ///< in this step

 private:
  /// Of the phase.
  struct Peer {
    bool sent = false;
    const std::byte* message = nullptr;  // that came
    std::int64_t added = 0;              // rows of it
  };
  void sort_choices() noexcept;
  bool send_rows(Rank to) noexcept;
  const std::byte* take_rows(Rank from) noexcept;
  const std::byte* take_sums(Rank from) noexcept;
  std::int64_t rows_claimed(ByteSpan message, std::span<const std::int64_t> kinds, std::int64_t most) const noexcept;
  const std::byte* refuse_message(Rank from) noexcept;
  void write_header(std::byte* message, std::int64_t rows) const noexcept;
  bool send_sums(Rank to) noexcept;
  void publish_received() noexcept;
  void add_sums() noexcept;
  void start_phase(StepState state) noexcept;
  void fail(StepFailure failure) noexcept;
  bool phase_done() noexcept;
  Rank owner(std::int32_t slot) const noexcept;
  bool by_choice() const noexcept { return strategy_.unit == RowUnit::token_expert; }
  std::int64_t rows_for(Rank to) const noexcept {
    return first_sent_[static_cast<std::size_t>(to) + 1] - first_sent_[static_cast<std::size_t>(to)];
  }

  const StrategyTraits strategy_;
  const ExchangeShape shape_;
  Endpoint& endpoint_;
  const Rank ranks_;
  const std::uint64_t contract_;
  std::int64_t choices_, max_rows_;  // of a row; from one rank to another
  std::vector<std::int64_t> kinds_;  // bytes of a row in each run of a message of rows
  int dispatch_box_ = -1, combine_box_ = -1;

  StepState state_ = StepState::idle;
  StepFailure failure_ = StepFailure::none;
  StepId step_ = 0;
  FabricTime deadline_{0};
  Outgoing outgoing_;
  const float* rows_ = nullptr;
  std::int64_t rows_stride_ = 0;
  float* routed_ = nullptr;

  std::vector<Peer> peers_;
  std::vector<Rank> missing_;
  std::vector<std::int64_t> first_sent_;  // [ranks + 1]: a rank's part of sent_
  std::vector<std::int32_t> sent_;        // the tokens or choices that went to each rank, ascending
  std::vector<std::int64_t> bytes_sent_;  // [ranks]
  std::vector<SourceRows> sources_;       // [ranks]
  std::vector<std::int32_t> slot_;        // of Received
  std::vector<float> weight_;
  Received received_;
};

}  // namespace motet
