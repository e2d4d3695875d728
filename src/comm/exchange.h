// SPDX-License-Identifier: Apache-2.0
// One layer's exchange on one rank: a machine that is polled, step after step, by every rank of the group.
//
//   idle -> begin() -> dispatching -> received -> combine() -> combining -> idle
//                           \-> failed <-------------------------/      (begin() starts the next step all the same)
//
// Where tokens are replicated nothing is dispatched (RowUnit::none): received() comes at once and empty, and combine() gives this
// rank's sums for all tokens to every rank.
//
// Every rank runs every step, with or without tokens (L9). A message is the rows for one rank, maybe none, behind a header that
// tells the contract: ranks that differ fail together. A step that fails is poisoned, so that the others end too (L19).
// Results depend on rows and shape alone, never on the order of arrival (L15).
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "comm/strategy.h"
#include "fabric/fabric.h"
#include "kernels/elements.h"
#include "plan/exchange.h"

namespace motet {

inline constexpr int kMaxParts = 4;

/// Slots [begin, end) that a rank holds, maybe none. Several ranks hold the same ones where tp splits experts: each gets the rows.
struct SlotRange {
  std::int32_t begin = 0, end = 0;
};

/// What all ranks agree on.
struct ExchangeShape {
  std::int64_t max_tokens = 0;      ///< of any rank, in any step; times top_k below 2^31
  std::int64_t forward_tokens = 0;  ///< of any rank, in all steps of a forward that is cut into chunks; 0 = max_tokens
  std::int64_t top_k = 1;
  std::int64_t width = 0;             ///< of the rows that come back, fp32 elements
  DType wire = DType::f32;            ///< of the rows that come back: f32 or bf16, rounded once
  std::vector<SlotRange> slots = {};  ///< [ranks]
  std::vector<std::int64_t> part_bytes =
      {};                      ///< of one token, for each part of the payload: values, scales, ...; at most kMaxParts
  std::uint64_t contract = 0;  ///< hash of all else that must be equal, such as the plan's fingerprint
  std::string target = "";     ///< of this rank's loops over elements, "" = generic; need not be equal, as it changes no bit
};

/// The two mailboxes of an endpoint that its layers' exchanges have in common; larger ones are opened for a layer that needs them.
struct ExchangeBoxes {
  int dispatch = -1, combine = -1;
  std::int64_t dispatch_bytes = -1, combine_bytes = -1;  ///< of the longest message
};

/// This rank's tokens. Borrowed until the step is done.
struct Outgoing {
  std::int64_t tokens = 0;
  std::int64_t chunk = 0;                        ///< of the forward: equal on all ranks
  std::int64_t forward_tokens = 0;               ///< in all chunks, at least `tokens`; 0 = tokens
  const std::int32_t* slot = nullptr;            ///< [tokens, top_k]; -1 = nobody
  const float* weight = nullptr;                 ///< [tokens, top_k]
  std::span<const std::byte* const> parts = {};  ///< token t of part p at parts[p] + t * part_bytes[p]
};

/// Rows of one rank's tokens: others' as they lie in the fabric's memory, this rank's own where they were given.
struct SourceRows {
  std::int64_t first = 0, rows = 0;        ///< in the order of all received rows
  const std::byte* parts[kMaxParts] = {};  ///< row i at parts[p] + place(i) * part_bytes[p]
  const std::int32_t* choice = nullptr;    ///< [rows]: token * top_k + k where a row is a choice, else the token
  std::int64_t own = 0;                    ///< choices of a token where parts are those that were given, else 0

  std::int64_t place(std::int64_t i) const noexcept { return own == 0 ? i : choice[i] / own; }
};

/// What came, in order of (rank, token, k). Valid until the step is done or failed.
struct Received {
  std::int64_t rows = 0;
  std::int64_t choices = 0;                  ///< of each row: top_k, or 1 where a row is a choice
  const std::int32_t* slot = nullptr;        ///< [rows, choices]; -1 = not held here
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
  /// Collective: takes the endpoint's boxes when they are large enough, or opens mailboxes; without `boxes`, of its own. Both must
  /// outlive this. Throws Error(would_not_fit).
  Exchange(const StrategyTraits& strategy, const ExchangeShape& shape, Endpoint& endpoint, ExchangeBoxes* boxes = nullptr);
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
  /// Most tokens of any rank in all chunks of this forward, from which follows how many chunks there are. Known once received; 0
  /// where nothing is dispatched.
  std::int64_t forward_tokens() const noexcept { return forward_tokens_; }
  /// Sends back rows[i], fp32, one for each received row (zeros for a row without a slot here), `width` elements from
  /// rows + i * stride on; poll() writes the routed sums, fp32 [tokens, width], to `routed` before the state is idle. Both are
  /// borrowed until then. Where nothing was dispatched: one row for each token, and `routed` may be the same memory.
  /// Requires `received`.
  void combine(const float* rows, std::int64_t stride, float* routed) noexcept;
  /// Leaves the step: the other ranks end it as poisoned. Requires a step under way.
  void abandon() noexcept;

  StepState state() const noexcept { return state_; }
  StepFailure failure() const noexcept { return failure_; }
  /// Ranks that the failed step lacks: late, gone, or of another contract; of a poisoned step, the ranks that began it.
  std::span<const Rank> missing() const noexcept { return missing_; }
  std::int64_t bytes_sent(Rank to) const noexcept { return bytes_sent_[static_cast<std::size_t>(to)]; }  ///< in this step
  /// From the begin of this rank's dispatch, and of its combine, until that rank's message had come: both together, of this step.
  FabricTime waited(Rank from) const noexcept { return waited_[static_cast<std::size_t>(from)]; }

 private:
  /// Of the phase.
  struct Peer {
    bool sent = false;
    const std::byte* message = nullptr;  // that came
    std::int64_t added = 0;              // rows of it, or of this rank's own
  };
  void open_boxes(const ExchangeSizes& sizes, ExchangeBoxes* boxes);
  void sort_choices() noexcept;
  bool send_rows(Rank to) noexcept;
  const std::byte* take_rows(Rank from) noexcept;
  const std::byte* take_sums(Rank from) noexcept;
  std::int64_t rows_claimed(ByteSpan message, std::span<const std::int64_t> kinds, std::int64_t most) const noexcept;
  const std::byte* refuse_message(Rank from) noexcept;
  void write_header(std::byte* message, std::int64_t rows) const noexcept;
  bool send_sums(Rank to) noexcept;
  void publish_received() noexcept;
  void add_term(Rank from, const float* weight) noexcept;
  void add_sums() noexcept;
  void start_phase(StepState state) noexcept;
  void fail(StepFailure failure) noexcept;
  bool phase_done(FabricTime now) noexcept;
  std::span<const Rank> holders(std::int32_t slot) const noexcept;
  bool dispatches() const noexcept { return strategy_.unit != RowUnit::none; }
  std::int64_t most_forward_tokens() const noexcept { return std::max(shape_.max_tokens, shape_.forward_tokens); }
  bool by_choice() const noexcept { return strategy_.unit == RowUnit::token_expert; }
  std::int64_t rows_for(Rank to) const noexcept {
    return first_sent_[static_cast<std::size_t>(to) + 1] - first_sent_[static_cast<std::size_t>(to)];
  }

  const StrategyTraits strategy_;
  const ExchangeShape shape_;
  Endpoint& endpoint_;
  const ElementKernels& elements_;
  const Rank ranks_;
  const std::uint64_t contract_;
  std::int64_t choices_ = 0, max_rows_ = 0;  // of a row; from one rank to another
  std::vector<std::int64_t> kinds_;          // bytes of a row in each run of a message of rows
  int dispatch_box_ = -1, combine_box_ = -1;

  StepState state_ = StepState::idle;
  StepFailure failure_ = StepFailure::none;
  StepId step_ = 0;
  FabricTime deadline_{0};  // of the phase; combine_deadline_ of the step
  FabricTime combine_deadline_{0};
  Outgoing outgoing_;
  std::int64_t forward_tokens_ = 0;
  const float* rows_ = nullptr;
  std::int64_t rows_stride_ = 0;
  float* routed_ = nullptr;

  std::vector<Peer> peers_;
  std::vector<SumTerm> terms_;  // of one token
  std::vector<Rank> missing_;
  std::vector<std::int64_t> first_sent_;    // [ranks + 1]: a rank's part of sent_
  std::vector<std::int32_t> sent_;          // the tokens or choices that went to each rank, ascending
  std::vector<std::int32_t> first_holder_;  // [slots + 1]: a slot's part of holder_
  std::vector<Rank> holder_;                // ascending
  std::vector<std::int32_t> last_sent_;     // [ranks]: the token that went there last
  std::vector<std::int64_t> bytes_sent_;    // [ranks]
  std::vector<FabricTime> waited_;          // [ranks]
  FabricTime phase_begin_{0};
  std::vector<SourceRows> sources_;  // [ranks]
  std::vector<std::int32_t> slot_;   // of Received
  std::vector<float> weight_;
  Received received_;
};

}  // namespace motet
