// SPDX-License-Identifier: Apache-2.0
// Choices to rows: a stable counting sort of (token, k) by slot, of the slots that one rank holds.
#pragma once

#include <cstdint>

namespace motet {

struct Grouping {
  const std::int32_t* slot = nullptr;  ///< [tokens, top_k]; not held here = no row (absent, a zero expert, another rank's)
  std::int64_t tokens = 0, top_k = 0;
  std::int64_t first_slot = 0, slots = 0;  ///< held here
  std::int64_t* first_row = nullptr;       ///< out [slots + 1]: prefix sums; the last is the number of rows
  std::int32_t* row_of = nullptr;          ///< out [tokens, top_k]; -1 = no row
  std::int32_t* token_of = nullptr;        ///< out [tokens * top_k]: token of each row; entries past the row count are not written
  std::int64_t* load = nullptr;            ///< out [slots]: rows of each slot
};

/// Choices that have a row.
std::int64_t count_rows(const Grouping& grouping) noexcept;
/// Rows of one slot keep the order of (token, k). Allocates nothing. Returns the number of rows.
std::int64_t group_by_slot(const Grouping& grouping) noexcept;

}  // namespace motet
