// SPDX-License-Identifier: Apache-2.0
// A group: ranks that run layers together, as threads of a process, processes of a host or of an MPI launch (docs/exchange.md).
//
// Every rank makes the same layers in the same order and runs the same forwards, also with no tokens. A rank that fails makes the
// others fail in the same step; every wait ends by a deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/plan.h"

namespace motet {

struct GroupOptions {
  std::int64_t mailbox_bytes = 0;   ///< of all ranks: the sum of mailbox_bytes_of() of the plans that will run, or more
  double deadline = 30;             ///< seconds from the begin of the exchange of a forward, or of one chunk of it, to its end, the experts' work in between included
  double creation_deadline = 600;   ///< seconds that Layer::create waits for other ranks, which may repack weights meanwhile
};

/// What the group's layers of this plan need for mailboxes, of all ranks; MPI takes its own. Layers share them: the largest plan would do when it comes
/// first.
std::int64_t mailbox_bytes_of(const Plan& plan) noexcept;

/// One rank's place in a group. Used by one thread at a time, that of its rank; its layers keep it alive.
class Group {
 public:
  /// Ranks that are threads of this process; element r is for the thread of rank r. Throws Error(invalid_argument | would_not_fit).
  static std::vector<std::shared_ptr<Group>> threads(int ranks, const GroupOptions& options);
  /// Ranks that are processes of this host: makes the memory that they share, as a file descriptor for join(), which forked processes
  /// inherit. The caller closes it. Throws Error(invalid_argument | would_not_fit).
  static int shared_memory(int ranks, const GroupOptions& options);
  /// This process's rank of a group in such memory, made with the same options. Throws Error(invalid_argument | would_not_fit).
  static std::shared_ptr<Group> join(int shared_memory, int rank, int ranks, const GroupOptions& options);

  /// This process's rank of an MPI launch, which must last until the process ends (docs/fabrics.md). Throws Error(not_supported) when
  /// there is no MPI, Error(rank_missing) when the other processes did not come.
  static std::shared_ptr<Group> mpi(const GroupOptions& options);

  virtual ~Group() = default;
  virtual int rank() const noexcept = 0;
  virtual int ranks() const noexcept = 0;
  virtual const std::string& fabric() const noexcept = 0;   ///< threads, shm or mpi: what plans must be made for
  /// Collective, with an equal `most_bytes`: rank 0 gets what every rank gives, at most that many bytes each, and nothing from a rank
  /// that did not come by the deadline; the others get nothing. Throws Error(would_not_fit | invalid_argument).
  virtual std::vector<std::vector<std::byte>> gather(const std::vector<std::byte>& mine, std::int64_t most_bytes) = 0;
};

}  // namespace motet
