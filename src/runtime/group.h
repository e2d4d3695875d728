// SPDX-License-Identifier: Apache-2.0
// The group behind motet/group.h: a rank's end of a fabric, the agreement on plans, and mailboxes that layers share.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "comm/agreement.h"
#include "comm/exchange.h"
#include "motet/group.h"

namespace motet {

class GroupImpl final : public Group {
 public:
  GroupImpl(std::string fabric, std::unique_ptr<Endpoint> endpoint, const GroupOptions& options);

  int rank() const noexcept override { return endpoint_->rank(); }
  int ranks() const noexcept override { return endpoint_->ranks(); }
  const std::string& fabric() const noexcept override { return fabric_; }
  std::vector<std::vector<std::byte>> gather(const std::vector<std::byte>& mine, std::int64_t most_bytes) override;

  /// Collective. Throws Error(ranks_disagree | rank_missing) on every rank unless all give an equal plan.
  void agree(const Plan& plan);
  /// In place of an agreement: the others' ends at once.
  void leave() noexcept;
  /// Collective, after an agreement on the plan. Throws Error(would_not_fit), after which the group is of no use.
  std::unique_ptr<Exchange> make_exchange(const Plan& plan);

  /// Ranks of one host share its processors.
  PoolShare pool_share() const noexcept { return one_host_ ? PoolShare{rank(), ranks()} : PoolShare{}; }
  FabricTime deadline() const noexcept { return endpoint_->now() + deadline_; }

 private:
  void check_whole();

  const std::string fabric_;
  const bool one_host_;
  std::unique_ptr<Endpoint> endpoint_;
  Agreement agreement_;
  ExchangeBoxes boxes_;
  FabricTime deadline_, creation_deadline_;
  int gather_box_ = -1;
  std::int64_t gather_bytes_ = -1;  // of its longest message
  bool broken_ = false;             // a mailbox was refused: what others have opened is not known
};

}  // namespace motet
