// SPDX-License-Identifier: Apache-2.0
#include "runtime/grouping.h"

#include <algorithm>

#include "motet/types.h"

namespace motet {

std::int64_t group_by_slot(const Grouping& grouping) noexcept {
  const std::int64_t choices = grouping.tokens * grouping.top_k;
  const auto has_row = [&](std::int64_t choice) { return grouping.slot[choice] >= 0 && grouping.slot[choice] < grouping.slots; };

  std::fill_n(grouping.load, grouping.slots, std::int64_t{0});
  for (std::int64_t choice = 0; choice < choices; ++choice)
    if (has_row(choice)) ++grouping.load[grouping.slot[choice]];

  std::int64_t rows = 0;
  for (std::int64_t slot = 0; slot < grouping.slots; ++slot) {
    grouping.first_row[slot] = rows;
    rows += grouping.load[slot];
  }
  grouping.first_row[grouping.slots] = rows;

  // first_row[slot] serves as the cursor of its slot and ends at the first row of the next one; then it is shifted back.
  for (std::int64_t choice = 0; choice < choices; ++choice) {
    grouping.row_of[choice] = kAbsent;
    if (!has_row(choice)) continue;
    const std::int64_t row = grouping.first_row[grouping.slot[choice]]++;
    grouping.row_of[choice] = static_cast<std::int32_t>(row);
    grouping.token_of[row] = static_cast<std::int32_t>(choice / grouping.top_k);
  }
  for (std::int64_t slot = grouping.slots; slot > 0; --slot) grouping.first_row[slot] = grouping.first_row[slot - 1];
  grouping.first_row[0] = 0;
  return rows;
}

}  // namespace motet
