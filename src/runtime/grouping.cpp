// SPDX-License-Identifier: Apache-2.0
#include "runtime/grouping.h"

#include <algorithm>

#include "motet/types.h"

namespace motet {
namespace {

/// A choice's slot counted from the first one held here; -1 = it has no row.
std::int64_t held(const Grouping& grouping, std::int64_t choice) noexcept {
  const std::int64_t slot = grouping.slot[choice] - grouping.first_slot;
  return grouping.slot[choice] >= 0 && slot >= 0 && slot < grouping.slots ? slot : -1;
}

}  // namespace

std::int64_t count_rows(const Grouping& grouping) noexcept {
  std::int64_t rows = 0;
  for (std::int64_t choice = 0; choice < grouping.tokens * grouping.top_k; ++choice) rows += held(grouping, choice) >= 0 ? 1 : 0;
  return rows;
}

std::int64_t group_by_slot(const Grouping& grouping) noexcept {
  const std::int64_t choices = grouping.tokens * grouping.top_k;
  std::fill_n(grouping.load, grouping.slots, std::int64_t{0});
  for (std::int64_t choice = 0; choice < choices; ++choice)
    if (const std::int64_t slot = held(grouping, choice); slot >= 0) ++grouping.load[slot];

  std::int64_t rows = 0;
  for (std::int64_t slot = 0; slot < grouping.slots; ++slot) {
    grouping.first_row[slot] = rows;
    rows += grouping.load[slot];
  }
  grouping.first_row[grouping.slots] = rows;

  // first_row[slot] serves as the cursor of its slot and ends at the first row of the next one; then it is shifted back.
  for (std::int64_t choice = 0; choice < choices; ++choice) {
    grouping.row_of[choice] = kAbsent;
    const std::int64_t slot = held(grouping, choice);
    if (slot < 0) continue;
    const std::int64_t row = grouping.first_row[slot]++;
    grouping.row_of[choice] = static_cast<std::int32_t>(row);
    grouping.token_of[row] = static_cast<std::int32_t>(choice / grouping.top_k);
  }
  for (std::int64_t slot = grouping.slots; slot > 0; --slot) grouping.first_row[slot] = grouping.first_row[slot - 1];
  grouping.first_row[0] = 0;
  return rows;
}

}  // namespace motet
