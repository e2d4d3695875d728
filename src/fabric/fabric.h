// SPDX-License-Identifier: Apache-2.0
// How ranks of a group hand each other bytes: mailboxes whose messages carry the number of their step.
//
// A mailbox has one slot for each (sender, receiver, parity of the step), which only that sender writes: step s uses the slot of
// step s - 2, once the receiver has said that it reads nothing of s - 2 any more. Nothing is ever reset. Step numbers only grow, so
// a message that comes late carries an old number and is never taken for a new one, "not here" is not "empty", and a slot needs
// no lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motet/types.h"
#include "plan/catalog.h"

namespace motet {

using Rank = std::int32_t;     ///< place in the group, never renumbered
using StepId = std::uint64_t;  ///< 1, 2, 3 ...: equal on all ranks

/// Time of a fabric, from an origin of its own: the simulated one owns its clock.
using FabricTime = std::chrono::nanoseconds;

struct MailboxSpec {
  std::string_view purpose;  ///< in errors: counts, rows, ...
  std::int64_t bytes = 0;    ///< of the longest message, >= 0
};

/// One rank's end of a fabric. One thread at a time; calls but open() do not throw, allocate or wait, unless they say so.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual Rank rank() const noexcept = 0;
  virtual Rank ranks() const noexcept = 0;

  /// A mailbox; every rank opens the same ones in the same order, which the fingerprints of their plans prove before.
  /// Returns its number: 0, 1, ... Throws Error(would_not_fit) with the sizes: the group is of no use then.
  virtual int open(const MailboxSpec& spec) = 0;

  /// Where the message to `to` is written, 128-byte aligned; null while `to` may still read what lies there: ask again later.
  virtual std::byte* slot(int mailbox, Rank to, StepId step) noexcept = 0;
  /// Sends the first `bytes` of the slot; once for each slot and step.
  virtual void post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept = 0;
  /// The message of that step, valid until finish(step); none while it has not come.
  virtual std::optional<ByteSpan> arrived(int mailbox, Rank from, StepId step) noexcept = 0;

  /// This rank reads nothing of `step` or earlier ones any more.
  virtual void finish(StepId step) noexcept = 0;
  /// This rank left `step` before its end because of `cause` (itself, or the rank that it missed), and sends nothing of it any
  /// more; finishes it too.
  virtual void poison(StepId step, Rank cause) noexcept = 0;
  /// The cause when `from` left `step`, or a later one, early: what has not come from it for `step` never will.
  virtual std::optional<Rank> poisoned(Rank from, StepId step) const noexcept = 0;

  /// The number of the next step: every rank asks once for each step that it begins.
  StepId next_step() noexcept { return ++last_step_; }

  virtual FabricTime now() const noexcept = 0;
  /// Waits until something may have come or changed since the last wait, or until `until`. Idle ranks use no processor for long.
  virtual void wait(FabricTime until) noexcept = 0;

 private:
  StepId last_step_ = 0;
};

/// All fabrics, in the order of fabrics.inc.
const std::vector<const FabricTraits*>& all_fabrics();

/// Bytes of a group's memory that are no mailbox's (motet/plan's mailbox_bytes tells a mailbox's).
std::int64_t endpoint_bytes(Rank ranks) noexcept;

/// Ranks that are threads of this process: endpoint r is for the thread of rank r. `reserve` bounds the bytes of all their
/// mailboxes; it is address space until it is used. Throws Error(would_not_fit).
std::vector<std::unique_ptr<Endpoint>> thread_endpoints(Rank ranks, std::int64_t reserve);

/// The memory of a group of processes, as a descriptor that forked processes share and others are sent; the caller closes it.
/// `reserve` bounds the bytes of all mailboxes; they are taken when a mailbox is opened. Throws Error(would_not_fit).
int shm_segment(Rank ranks, std::int64_t reserve);
/// One process's end, with the segment's ranks and reserve. Throws Error(would_not_fit).
std::unique_ptr<Endpoint> shm_endpoint(int segment, std::int64_t reserve, Rank rank, Rank ranks);

/// This process's end of a group of all the processes of its MPI launch. Collective; loads motet_mpi.so and starts MPI unless it
/// runs already; for the thread that started it. The destructor waits for the others to close their ends, so that nothing that
/// was sent is lost: close it last. `patience` bounds both waits. When a rank is missing at the end, memory that MPI may still
/// use is kept, and the process leaves without MPI_Finalize, on which the launcher ends all others. Throws Error(not_supported)
/// when there is no module or no fitting MPI, Error(rank_missing) when the others did not come.
std::unique_ptr<Endpoint> mpi_endpoint(FabricTime patience);

}  // namespace motet
