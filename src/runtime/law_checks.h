// SPDX-License-Identifier: Apache-2.0
// Laws that hold of every way to run a layer, as checks that can be run anywhere: `motet check` and tests/laws.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "formats/layer_weights.h"
#include "runtime/check_runs.h"

namespace motet {

struct LawSubject {
  const LayerSpec& spec;
  std::shared_ptr<const LayerWeights> weights;
  const CheckWay& way;
  const Environment& environment;
  std::uint64_t seed = 1;
};

/// A check returns what is wrong, or nothing. Throws Error when the way cannot be planned.
struct LawCheck {
  std::string_view law, name;
  std::optional<std::string> (*check)(const LawSubject&);
  /// Why the way is exempt (a plan that refuses the wish the law needs), or nothing.
  std::optional<std::string> (*exempt)(const LawSubject&);
};
std::span<const LawCheck> law_checks();

}  // namespace motet
