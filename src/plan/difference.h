// SPDX-License-Identifier: Apache-2.0
// Which field of two values of planning differs first, by its path, such as "workspace.areas[3].bytes".
#pragma once

#include <optional>
#include <string>

#include "motet/plan.h"

namespace motet {

struct Difference {
  std::string path;
  std::string first, second;  ///< the field's values as text
};

/// In the order of the fields of plan/fields.h; nothing when all are equal.
std::optional<Difference> first_difference(const LayerSpec& first, const LayerSpec& second);

/// All that a plan says but how it came about: the wished arithmetic and the report of choices (a substituted wish stands in
/// `deployment` as what was taken), and the estimates.
std::optional<Difference> first_difference(const Plan& first, const Plan& second);

}  // namespace motet
