// SPDX-License-Identifier: Apache-2.0
#include "runtime/group.h"

#include <algorithm>
#include <string>

#include "base/text.h"
#include "comm/hash.h"
#include "comm/strategy.h"
#include "plan/exchange.h"
#include "plan/sizes.h"
#include "plan/spec_check.h"

namespace motet {
namespace {

/// Longest deadline that a clock of nanoseconds can add to its time without care.
constexpr double kLongestWait = 1e9;

FabricTime time_of(double seconds) { return FabricTime(static_cast<std::int64_t>(seconds * 1e9)); }

void check_options(int rank, int ranks, const GroupOptions& options) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks)
    throw Error(ErrorCode::invalid_argument, format_text("a group has 1 to %d ranks, numbered from 0, but rank %d of %d was given",
                                                         static_cast<int>(kMaxRanks), rank, ranks));
  for (const double seconds : {options.deadline, options.creation_deadline})
    if (!(seconds > 0) || seconds > kLongestWait)
      throw Error(ErrorCode::invalid_argument,
                  format_text("a deadline must be above 0 and at most %g seconds, but is %g", kLongestWait, seconds));
  if (options.mailbox_bytes < 0)
    throw Error(ErrorCode::invalid_argument, "the mailboxes of a group take at least 0 bytes, but " +
                                                 std::to_string(options.mailbox_bytes) +
                                                 " were given; sum mailbox_bytes_of() of the plans");
}

/// With what the group itself needs.
std::int64_t reserve_of(int ranks, const GroupOptions& options) {
  const std::int64_t own = Agreement::mailbox_bytes(ranks) + endpoint_bytes(ranks);
  return options.mailbox_bytes > INT64_MAX - own ? INT64_MAX : options.mailbox_bytes + own;
}

bool one_host(std::string_view fabric) {
  for (const FabricTraits* traits : all_fabrics())
    if (traits->name == fabric) return traits->one_host;
  return false;
}

/// All that must be equal in an exchange beside its shape: the agreed plan.
std::uint64_t contract_of(const Plan& plan) {
  Hash hash;
  hash.add(plan.fingerprint);
  return hash.value();
}

}  // namespace

std::int64_t mailbox_bytes_of(const Plan& plan) noexcept {
  return plan.ranks.size() == 1 ? 0 : bounded_product({plan.exchange.mailboxes, static_cast<std::int64_t>(plan.ranks.size())});
}

std::vector<std::shared_ptr<Group>> Group::threads(int ranks, const GroupOptions& options) {
  check_options(0, ranks, options);
  std::vector<std::shared_ptr<Group>> groups;
  for (std::unique_ptr<Endpoint>& endpoint : thread_endpoints(ranks, reserve_of(ranks, options)))
    groups.push_back(std::make_shared<GroupImpl>("threads", std::move(endpoint), options));
  return groups;
}

int Group::shared_memory(int ranks, const GroupOptions& options) {
  check_options(0, ranks, options);
  return shm_segment(ranks, reserve_of(ranks, options));
}

std::shared_ptr<Group> Group::join(int shared_memory, int rank, int ranks, const GroupOptions& options) {
  check_options(rank, ranks, options);
  return std::make_shared<GroupImpl>("shm", shm_endpoint(shared_memory, reserve_of(ranks, options), rank, ranks), options);
}

std::shared_ptr<Group> Group::mpi(const GroupOptions& options) {
  check_options(0, 1, options);
  return std::make_shared<GroupImpl>("mpi", mpi_endpoint(time_of(options.deadline)), options);
}

GroupImpl::GroupImpl(std::string fabric, std::unique_ptr<Endpoint> endpoint, const GroupOptions& options)
    : fabric_(std::move(fabric)),
      one_host_(one_host(fabric_)),
      endpoint_(std::move(endpoint)),
      agreement_(*endpoint_),
      deadline_(time_of(options.deadline)),
      creation_deadline_(time_of(options.creation_deadline)) {}

/// A group whose mailboxes were refused on this rank: other ranks count theirs otherwise from then on.
void GroupImpl::check_whole() {
  if (!broken_) return;
  leave();
  throw Error(
      ErrorCode::would_not_fit,
      "a group is of no use after its mailboxes were refused; make another group with more bytes, or plan for fewer tokens");
}

void GroupImpl::agree(const Plan& plan) {
  check_whole();
  const auto difference = agreement_.compare(plan, endpoint_->now() + creation_deadline_);
  if (!difference) return;
  if (difference->field.empty())
    throw Error(
        ErrorCode::rank_missing,
        format_text("every rank must make its layer, but rank %d did not by the deadline of %g s or gave up; see what it says",
                    difference->rank, std::chrono::duration<double>(creation_deadline_).count()));
  throw Error(
      ErrorCode::ranks_disagree,
      format_text("ranks must plan alike, but rank %d differs in %s, which is %s on rank %d; plan with the same spec, deployment "
                  "and library on all, and MOTET_TARGET where machines differ",
                  difference->rank, difference->field.c_str(), difference->mine.c_str(), rank()));
}

void GroupImpl::leave() noexcept { endpoint_->poison(endpoint_->next_step(), endpoint_->rank()); }

std::unique_ptr<Exchange> GroupImpl::make_exchange(const Plan& plan) {
  ExchangeShape shape{.max_tokens = plan.deployment.at_once(),
                      .forward_tokens = plan.deployment.tokens,
                      .top_k = plan.spec.top_k,
                      .width = plan.exchange.width,
                      .wire = plan.recipe.wire,
                      .contract = contract_of(plan),
                      .target = plan.target};
  for (const RankSlice& slice : plan.ranks)
    shape.slots.push_back(
        {static_cast<std::int32_t>(slice.expert_begin), static_cast<std::int32_t>(slice.expert_begin + slice.expert_count)});
  if (plan.exchange.row_bytes > 0) shape.part_bytes.push_back(plan.exchange.row_bytes);
  try {
    return std::make_unique<Exchange>(*find_strategy(plan.strategy), shape, *endpoint_, &boxes_);
  } catch (const Error&) {
    broken_ = true;
    throw;
  }
}

std::vector<std::vector<std::byte>> GroupImpl::gather(const std::vector<std::byte>& mine, std::int64_t most_bytes) {
  check_whole();
  if (static_cast<std::int64_t>(mine.size()) > most_bytes) {
    leave();
    throw Error(ErrorCode::invalid_argument,
                format_text("a rank gives at most the %lld bytes that all agreed on, but %lld were given",
                            static_cast<long long>(most_bytes), static_cast<long long>(mine.size())));
  }
  if (gather_bytes_ < most_bytes) {
    gather_box_ = endpoint_->open({"gathered bytes", most_bytes});
    gather_bytes_ = most_bytes;
  }
  const int box = gather_box_;
  const StepId step = endpoint_->next_step();
  const FabricTime until = deadline();
  std::byte* slot = nullptr;
  while ((slot = endpoint_->slot(box, 0, step)) == nullptr && endpoint_->now() < until) endpoint_->wait(until);
  if (slot != nullptr) {
    std::copy(mine.begin(), mine.end(), slot);
    endpoint_->post(box, 0, step, static_cast<std::int64_t>(mine.size()));
  }
  std::vector<std::vector<std::byte>> all;
  for (Rank from = 0; rank() == 0 && from < ranks(); ++from) {
    std::optional<ByteSpan> message;
    while (!(message = endpoint_->arrived(box, from, step)) && !endpoint_->poisoned(from, step) && endpoint_->now() < until)
      endpoint_->wait(until);
    all.emplace_back();
    if (message) all.back().assign(message->data, message->data + message->bytes);
  }
  endpoint_->finish(step);
  return all;
}

}  // namespace motet
