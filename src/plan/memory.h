// SPDX-License-Identifier: Apache-2.0
// Bytes of the rank that needs most (rank 0), the verdict against the limit, and what would fit (L16).
#pragma once

#include <functional>

#include "plan/draft.h"

namespace motet {

/// What a number of tokens costs in allocated memory.
struct Anonymous {
  std::int64_t workspace = 0, exchange = 0, prepared = 0, packed = 0;
  std::int64_t sum() const noexcept { return workspace + exchange + prepared + packed; }
};
Anonymous anonymous_of(const Draft& draft, std::int64_t workspace) noexcept;

struct MemoryQuestion {
  std::int64_t limit = 0;  ///< bytes; 0 = unknown, everything fits
  std::int64_t tokens = 0;
  std::function<Anonymous(std::int64_t tokens)> allocated;  ///< pure; called again only when the asked tokens do not fit
};

MemoryPlan make_memory(const Draft& draft, const MemoryQuestion& question);

Estimates make_estimates(const Draft& draft);

}  // namespace motet
