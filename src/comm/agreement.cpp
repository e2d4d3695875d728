// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <algorithm>
#include <cstring>

#include "base/numbers.h"
#include "comm/hash.h"
#include "plan/difference.h"
#include "plan/exchange.h"

namespace motet {
namespace {

/// Hashes of a message; the last one stands for all fields that follow, which are slices of ranks: they follow from the others. So
/// few that a message is below the 4096 bytes that MPI sends in one piece: ranks of another version may have another mailbox, and a
/// longer message is read whole into a shorter buffer (evidence: Open MPI 4.1.4 asked for 4224 bytes of a peer's memory for a
/// buffer of 256, December 2026).
constexpr std::size_t kFields = 448;

std::vector<std::uint64_t> hashes_of(const std::vector<Leaf>& leaves) {
  std::vector<std::uint64_t> hashes;
  Hash rest;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    Hash own;
    Hash& hash = i + 1 < kFields ? own : rest;
    hash.add(leaves[i].path);
    hash.add(leaves[i].value);
    if (i + 1 < kFields) hashes.push_back(own.value());
  }
  hashes.push_back(rest.value());
  return hashes;
}

/// The first field whose hash differs from a rank's message.
std::optional<Disagreement> difference_from(Rank rank, ByteSpan message, const std::vector<std::uint64_t>& mine,
                                            const std::vector<Leaf>& leaves) {
  std::vector<std::uint64_t> theirs(static_cast<std::size_t>(message.bytes) / 8);
  std::memcpy(theirs.data(), message.data, theirs.size() * 8);
  if (theirs == mine) return std::nullopt;
  const auto at = std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end()).first - mine.begin();
  const Leaf& leaf = leaves[std::min(static_cast<std::size_t>(at), leaves.size() - 1)];
  return Disagreement{rank, leaf.path, leaf.value};
}

}  // namespace

Agreement::Agreement(Endpoint& endpoint)
    : endpoint_(endpoint), mailbox_(endpoint.open({"agreement on the plan", static_cast<std::int64_t>(kFields) * 8})) {}

std::int64_t Agreement::mailbox_bytes(Rank ranks) noexcept {
  return ranks * motet::mailbox_bytes(ranks, static_cast<std::int64_t>(kFields) * 8, false);
}

std::optional<Disagreement> Agreement::compare(const Plan& plan, FabricTime deadline) {
  const std::vector<Leaf> leaves = agreed_leaves(plan);
  const std::vector<std::uint64_t> mine = hashes_of(leaves);
  const StepId step = endpoint_.next_step();
  const auto ranks = static_cast<std::size_t>(endpoint_.ranks());
  std::vector<bool> sent(ranks, false), came(ranks, false);
  std::vector<std::optional<Disagreement>> found(ranks);

  const auto send = [&](Rank to) {
    std::byte* const slot = endpoint_.slot(mailbox_, to, step);
    if (slot == nullptr) return false;
    std::memcpy(slot, mine.data(), mine.size() * 8);
    endpoint_.post(mailbox_, to, step, static_cast<std::int64_t>(mine.size()) * 8);
    return true;
  };
  const auto take = [&](Rank from, bool last) {
    const bool gone = last || endpoint_.poisoned(from, step);  // asked before: what came earlier is then seen
    const auto message = endpoint_.arrived(mailbox_, from, step);
    if (!message && !gone) return false;
    found[static_cast<std::size_t>(from)] = message ? difference_from(from, *message, mine, leaves) : Disagreement{from, "", ""};
    return true;
  };
  for (bool all = false; !all;) {
    const bool last = endpoint_.now() >= deadline;
    all = true;
    for (Rank rank = 0; rank < endpoint_.ranks(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (!sent[at]) sent[at] = send(rank) || last;
      if (!came[at]) came[at] = take(rank, last);
      all = all && sent[at] && came[at];
    }
    if (!all) endpoint_.wait(deadline);
  }
  for (const auto& difference : found) {
    if (!difference) continue;
    endpoint_.poison(step, difference->rank);
    return difference;
  }
  for (Rank rank = 0; rank < endpoint_.ranks(); ++rank) {  // all are equal, but somebody has not waited for this rank
    const auto cause = endpoint_.poisoned(rank, step);
    if (!cause) continue;
    endpoint_.poison(step, *cause);
    return Disagreement{*cause, "", ""};
  }
  endpoint_.finish(step);
  return std::nullopt;
}

}  // namespace motet
