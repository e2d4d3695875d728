// SPDX-License-Identifier: Apache-2.0
// Ranks that would disagree fail together before anything else is exchanged, with the name of the field (L10).
#pragma once

#include <optional>
#include <string>

#include "fabric/fabric.h"
#include "motet/plan.h"

namespace motet {

struct Disagreement {
  Rank rank = 0;      ///< the lowest rank that differs from this one, or did not come
  std::string field;  ///< path of the first field that differs, such as "spec.top_k"; empty when the rank did not come
  std::string mine;   ///< this rank's value of it
};

/// A group's agreement on a plan. Its mailbox does not depend on the plan: ranks that differ meet all the same.
class Agreement {
 public:
  /// Collective, and first of all that is opened on the endpoint, which must outlive this. Throws Error(would_not_fit).
  explicit Agreement(Endpoint& endpoint);
  /// Of all ranks.
  static std::int64_t mailbox_bytes(Rank ranks) noexcept;
  /// Collective: compares this rank's plan with the others', all but what may differ between hosts (plan/fields.h). Nothing when
  /// all are equal; else every rank learns so, by the deadline at the latest, and the step is poisoned. A rank that comes after
  /// another's deadline learns that too, unless its own look was over before the other gave up: the first exchange then ends so.
  std::optional<Disagreement> compare(const Plan& plan, FabricTime deadline);

 private:
  Endpoint& endpoint_;
  int mailbox_;
};

}  // namespace motet
