// SPDX-License-Identifier: Apache-2.0
// A fabric in memory that all ranks map: threads of a process, or processes of one host.
//
// Layout of the segment, areas in multiples of 128 bytes (two cache lines: the neighbour is fetched along)
//   a RankState for each rank
//   of each mailbox in the order of opening, of each receiver, of each parity, of each sender: a SlotState
//   then, in the same order, the slots
// Offsets follow from the mailboxes alone, so that ranks need not talk to open one. A receiver's slots lie together.
#pragma once

#include <atomic>

#include "base/math.h"
#include "fabric/fabric.h"

namespace motet {

inline constexpr std::int64_t kSegmentAlign = 128;

struct alignas(kSegmentAlign) RankState {
  std::atomic<StepId> finished{0};  // last step of which it reads nothing any more
  std::atomic<StepId> poisoned{0};  // last step that it left early, stored after the cause
  std::atomic<Rank> cause{0};
  std::atomic<std::uint32_t> bell{0};  // rung whenever something may have changed for this rank; it sleeps on it
  std::atomic<std::uint32_t> asleep{0};
};
struct alignas(kSegmentAlign) SlotState {
  std::atomic<StepId> step{0};  // of the message that lies in the slot, stored after its bytes
  std::int64_t bytes = 0;
};
// The segment begins as zeros, and what lies in it belongs to several processes.
static_assert(std::atomic<StepId>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

class SegmentEndpoint : public Endpoint {
 public:
  /// `base`: zeros at first, the same memory for all ranks, `reserve` bytes; must outlive this.
  SegmentEndpoint(std::byte* base, std::int64_t reserve, Rank rank, Rank ranks);

  Rank rank() const noexcept override { return rank_; }
  Rank ranks() const noexcept override { return ranks_; }
  int open(const MailboxSpec& spec) override;
  std::byte* slot(int mailbox, Rank to, StepId step) noexcept override;
  void post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept override;
  std::optional<ByteSpan> arrived(int mailbox, Rank from, StepId step) noexcept override;
  void finish(StepId step) noexcept override;
  void poison(StepId step, Rank cause) noexcept override;
  std::optional<Rank> poisoned(Rank from, StepId step) const noexcept override;
  FabricTime now() const noexcept override;
  void wait(FabricTime until) noexcept override;

 protected:
  /// Makes bytes [begin, end) of the segment usable, or throws Error(would_not_fit).
  virtual void provide(std::int64_t begin, std::int64_t end, std::string_view purpose) = 0;

 private:
  struct Mailbox {
    std::int64_t states, slots, bytes, stride;  // offsets in the segment, longest message, from one slot to the next
  };
  RankState& state(Rank rank) const noexcept;
  std::int64_t place(Rank to, Rank from, StepId step) const noexcept {
    return (std::int64_t{to} * 2 + static_cast<std::int64_t>(step % 2)) * ranks_ + from;
  }
  SlotState& slot_state(int mailbox, Rank to, Rank from, StepId step) const noexcept;
  std::byte* slot_bytes(int mailbox, Rank to, Rank from, StepId step) const noexcept;
  void ring(Rank rank) noexcept;
  void ring_all() noexcept;

  std::byte* const base_;
  const std::int64_t reserve_;
  const Rank rank_, ranks_;
  std::int64_t used_ = 0;
  std::uint32_t heard_ = 0;  // the bell when the last wait ended
  std::vector<Mailbox> mailboxes_;
};

}  // namespace motet
