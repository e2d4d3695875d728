// SPDX-License-Identifier: Apache-2.0
// Which field of two values of planning differs first, by its path, such as "workspace.areas[3].bytes".
#pragma once

#include <optional>
#include <string>
#include <vector>

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

/// A field that holds no others: its path, and its value as text.
struct Leaf {
  std::string path, value;
  bool operator==(const Leaf&) const = default;
};
/// What must be equal on all ranks (visit_agreed_fields), in the order of the fields.
std::vector<Leaf> agreed_leaves(const Plan& plan);

}  // namespace motet
