// SPDX-License-Identifier: Apache-2.0
#include "runtime/grouping.h"

#include <gtest/gtest.h>

#include <vector>

namespace motet {
namespace {

struct Grouped {
  std::vector<std::int64_t> first_row, load;
  std::vector<std::int32_t> row_of, token_of;
  std::int64_t rows = 0;
};

Grouped group(const std::vector<std::int32_t>& slot, std::int64_t top_k, std::int64_t slots) {
  Grouped result;
  result.first_row.assign(static_cast<std::size_t>(slots + 1), -9);
  result.load.assign(static_cast<std::size_t>(slots), -9);
  result.row_of.assign(slot.size(), -9);
  result.token_of.assign(slot.size(), -9);
  result.rows = group_by_slot({.slot = slot.data(),
                               .tokens = static_cast<std::int64_t>(slot.size()) / top_k,
                               .top_k = top_k,
                               .slots = slots,
                               .first_row = result.first_row.data(),
                               .row_of = result.row_of.data(),
                               .token_of = result.token_of.data(),
                               .load = result.load.data()});
  return result;
}

using I32 = std::vector<std::int32_t>;
using I64 = std::vector<std::int64_t>;

TEST(Grouping, RowsOfASlotKeepTokenOrder) {
  const Grouped result = group({2, 0, 0, 2, 2, 1}, 2, 3);
  EXPECT_EQ(result.rows, 6);
  EXPECT_EQ(result.first_row, (I64{0, 2, 3, 6}));
  EXPECT_EQ(result.load, (I64{2, 1, 3}));
  EXPECT_EQ(result.row_of, (I32{3, 0, 1, 4, 5, 2}));
  EXPECT_EQ(result.token_of, (I32{0, 1, 2, 0, 1, 2}));
}

TEST(Grouping, AbsentAndZeroExpertsHaveNoRow) {
  const Grouped result = group({-1, 3, 1, -1}, 2, 2);  // 3 is a zero expert of a layer with two experts
  EXPECT_EQ(result.rows, 1);
  EXPECT_EQ(result.row_of, (I32{-1, -1, 0, -1}));
  EXPECT_EQ(result.token_of, (I32{1, -9, -9, -9}));  // past the row count nothing is written
  EXPECT_EQ(result.first_row, (I64{0, 0, 1}));
}

TEST(Grouping, ZeroTokensGiveEmptySlots) {
  const Grouped result = group({}, 4, 3);
  EXPECT_EQ(result.rows, 0);
  EXPECT_EQ(result.first_row, (I64{0, 0, 0, 0}));
  EXPECT_EQ(result.load, (I64{0, 0, 0}));
}

TEST(Grouping, EveryTokenToTheLastSlot) {
  const Grouped result = group({4, 4, 4}, 1, 5);
  EXPECT_EQ(result.first_row, (I64{0, 0, 0, 0, 0, 3}));
  EXPECT_EQ(result.row_of, (I32{0, 1, 2}));
}

}  // namespace
}  // namespace motet
