// SPDX-License-Identifier: Apache-2.0
#include "fabric/segment.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/check.h"
#include "base/spin.h"
#include "base/text.h"
#include "motet/error.h"

namespace motet {
namespace {

FabricTime clock_now() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Sleeps while the word is `value`, until that time of the monotonic clock at the latest. Works between processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, FabricTime until) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(until);
  const timespec time = {static_cast<time_t>(seconds.count()), static_cast<long>((until - seconds).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, value, &time, nullptr, FUTEX_BITSET_MATCH_ANY);
}
void futex_wake(std::atomic<std::uint32_t>& word) noexcept { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace

SegmentEndpoint::SegmentEndpoint(std::byte* base, std::int64_t reserve, Rank rank, Rank ranks)
    : base_(base), reserve_(reserve), rank_(rank), ranks_(ranks), used_(ranks * std::int64_t{sizeof(RankState)}) {
  MOTET_CHECK(rank >= 0 && rank < ranks, "rank %d of %d", rank, ranks);
  if (used_ > reserve)
    throw Error(ErrorCode::would_not_fit,
                format_text("a group of %d ranks needs %lld bytes before any mailbox, but %lld were reserved; reserve more", ranks,
                            static_cast<long long>(used_), static_cast<long long>(reserve)));
}

std::int64_t endpoint_bytes(Rank ranks) noexcept { return ranks * std::int64_t{sizeof(RankState)}; }

RankState& SegmentEndpoint::state(Rank rank) const noexcept { return reinterpret_cast<RankState*>(base_)[rank]; }
SlotState& SegmentEndpoint::slot_state(int mailbox, Rank to, Rank from, StepId step) const noexcept {
  return reinterpret_cast<SlotState*>(base_ + mailboxes_[static_cast<std::size_t>(mailbox)].states)[place(to, from, step)];
}
std::byte* SegmentEndpoint::slot_bytes(int mailbox, Rank to, Rank from, StepId step) const noexcept {
  const Mailbox& box = mailboxes_[static_cast<std::size_t>(mailbox)];
  return base_ + box.slots + place(to, from, step) * box.stride;
}

int SegmentEndpoint::open(const MailboxSpec& spec) {
  MOTET_CHECK(spec.bytes >= 0, "bytes %lld", static_cast<long long>(spec.bytes));
  Mailbox box = {.states = used_, .slots = 0, .bytes = spec.bytes, .stride = 0};
  const std::int64_t slots = std::int64_t{2} * ranks_ * ranks_;
  std::int64_t bytes = 0, end = 0;
  const bool fits = checked_round_up(spec.bytes, kSegmentAlign, &box.stride) && checked_mul(slots, box.stride, &bytes) &&
                    checked_add(used_, slots * std::int64_t{sizeof(SlotState)}, &box.slots) &&
                    checked_add(box.slots, bytes, &end) && end <= reserve_;
  if (!fits)
    throw Error(ErrorCode::would_not_fit,
                format_text("mailbox '%.*s' has %lld slots (2 x %d ranks x %d) of %lld bytes, more than is left of the %lld bytes "
                            "reserved for this group; use fewer ranks or tokens, or reserve more",
                            static_cast<int>(spec.purpose.size()), spec.purpose.data(), static_cast<long long>(slots), ranks_,
                            ranks_, static_cast<long long>(spec.bytes), static_cast<long long>(reserve_)));
  provide(used_, end, spec.purpose);
  used_ = end;
  mailboxes_.push_back(box);
  return static_cast<int>(mailboxes_.size()) - 1;
}

std::byte* SegmentEndpoint::slot(int mailbox, Rank to, StepId step) noexcept {
  if (step > 2 && state(to).finished.load(std::memory_order_acquire) < step - 2) return nullptr;
  return slot_bytes(mailbox, to, rank_, step);
}

void SegmentEndpoint::post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept {
  const Mailbox& box = mailboxes_[static_cast<std::size_t>(mailbox)];
  MOTET_CHECK(bytes >= 0 && bytes <= box.bytes, "bytes %lld of %lld", static_cast<long long>(bytes),
              static_cast<long long>(box.bytes));
  SlotState& sent = slot_state(mailbox, to, rank_, step);
  sent.bytes = bytes;
  sent.step.store(step, std::memory_order_release);
  ring(to);
}

std::optional<ByteSpan> SegmentEndpoint::arrived(int mailbox, Rank from, StepId step) noexcept {
  const SlotState& sent = slot_state(mailbox, rank_, from, step);
  if (sent.step.load(std::memory_order_acquire) != step) return std::nullopt;
  // Another process wrote the length: one that the slot cannot have is as good as none.
  const std::int64_t most = mailboxes_[static_cast<std::size_t>(mailbox)].bytes, bytes = sent.bytes;
  return ByteSpan{slot_bytes(mailbox, rank_, from, step), bytes >= 0 && bytes <= most ? bytes : 0};
}

void SegmentEndpoint::finish(StepId step) noexcept {
  std::atomic<StepId>& finished = state(rank_).finished;
  if (step <= finished.load(std::memory_order_relaxed)) return;  // only this rank writes it
  finished.store(step, std::memory_order_release);
  ring_all();
}

void SegmentEndpoint::poison(StepId step, Rank cause) noexcept {
  RankState& mine = state(rank_);
  if (step > mine.poisoned.load(std::memory_order_relaxed)) {
    mine.cause.store(cause, std::memory_order_relaxed);
    mine.poisoned.store(step, std::memory_order_release);
  }
  finish(step);
}

std::optional<Rank> SegmentEndpoint::poisoned(Rank from, StepId step) const noexcept {
  if (state(from).poisoned.load(std::memory_order_acquire) < step) return std::nullopt;
  return state(from).cause.load(std::memory_order_relaxed);
}

void SegmentEndpoint::ring(Rank rank) noexcept {
  RankState& to = state(rank);
  to.bell.fetch_add(1);
  if (to.asleep.load() != 0) futex_wake(to.bell);
}
void SegmentEndpoint::ring_all() noexcept {
  for (Rank rank = 0; rank < ranks_; ++rank)
    if (rank != rank_) ring(rank);
}

FabricTime SegmentEndpoint::now() const noexcept { return clock_now(); }

void SegmentEndpoint::wait(FabricTime until) noexcept {
  RankState& mine = state(rank_);
  const auto rang = [&] { return mine.bell.load() != heard_; };
  const FabricTime sleep = std::min(until, clock_now() + kSpin);
  for (int i = 1; !rang(); ++i) {
    if (i % 16 == 0 && clock_now() >= sleep) break;
    relax();
  }
  mine.asleep.store(1);  // before the last look at the bell: whoever rings after that look sees it
  while (!rang() && clock_now() < until) futex_wait(mine.bell, heard_, until);
  mine.asleep.store(0);
  heard_ = mine.bell.load(std::memory_order_acquire);
}

}  // namespace motet
