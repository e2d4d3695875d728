// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/split.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace motet {
namespace {

TEST(Split, CoversEveryRowOfEverySlotOnce) {
  for (const std::int64_t live : {1, 3, 32}) {
    for (const std::int64_t rows : {1, 31, 32, 33, 720, 2880}) {
      for (const std::int64_t threads : {1, 2, 3, 64}) {
        const Split cut = split({.live = live, .rows = rows, .row_bytes = 1530, .tokens = 4, .threads = threads});
        std::map<std::int64_t, std::int64_t> next;  // slot -> row
        for (std::int64_t piece = 0; piece < cut.pieces(); ++piece) {
          ASSERT_EQ(cut.begin(piece), next[cut.slot(piece)]);
          ASSERT_LE(cut.begin(piece), cut.end(piece));
          next[cut.slot(piece)] = cut.end(piece);
        }
        ASSERT_EQ(static_cast<std::int64_t>(next.size()), live);
        for (const auto& [slot, row] : next) ASSERT_EQ(row, rows) << "slot " << slot;
      }
    }
  }
}

TEST(Split, GivesEachThreadFourPiecesOfALargeLayer) {
  const Split cut = split({.live = 4, .rows = 2880, .row_bytes = 3060, .tokens = 4, .threads = 2});
  EXPECT_EQ(cut.pieces(), 8);
  EXPECT_EQ(cut.slot(0), 0);
  EXPECT_EQ(cut.slot(3), 3);
  EXPECT_EQ(cut.end(0), 1440);
}

TEST(Split, KeepsPiecesOfASmallLayerWorthTheirHandingOut) {
  EXPECT_EQ(split({.live = 1, .rows = 288, .row_bytes = 160, .tokens = 1, .threads = 8}).blocks, 1);
  EXPECT_GT(split({.live = 1, .rows = 288, .row_bytes = 160, .tokens = 64, .threads = 8}).blocks, 8);
}

}  // namespace
}  // namespace motet
