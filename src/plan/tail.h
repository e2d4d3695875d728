// SPDX-License-Identifier: Apache-2.0
// The tail: what happens to the combined rows until they are the output, as a program that can be checked (L5).
//
// State: the width, whether the sum over ranks is done (reduced), whether the routed scale is applied (scaled). Where rows are
// dispatched, that sum is the combine stage's. A stored width larger than the true one is cut first; finalize does it while it
// sums, without a copy.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/draft.h"

namespace motet {

/// What the tail starts from and must bring together.
struct TailFacts {
  const LayerSpec& spec;
  std::int64_t stored_width = 0;  ///< of the rows that finalize sums
  bool reduced = true;            ///< false when ranks hold partial sums: replicated tokens
  bool shared_sliced = false;     ///< the shared expert's output is a partial sum too
};

TailFacts tail_facts(const Draft& draft);

/// Empty when the plan leaves rows unfinalized.
std::vector<TailStep> make_tail(const TailFacts& facts);

/// The rule that the program breaks, or nothing.
std::optional<std::string> check_tail(const std::vector<TailStep>& steps, const TailFacts& facts);

}  // namespace motet
