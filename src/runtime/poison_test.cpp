// SPDX-License-Identifier: Apache-2.0
#include "runtime/poison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace motet {
namespace {

/// Two areas with a gap of 32 bytes between them and one of 64 bytes behind.
Plan two_areas() {
  Plan plan;
  plan.workspace.bytes = 256;
  plan.workspace.areas = {{.id = AreaId::logits, .offset = 0, .bytes = 32, .first = StageId::route, .last = StageId::route},
                          {.id = AreaId::rows, .offset = 64, .bytes = 128, .first = StageId::experts, .last = StageId::finalize}};
  return plan;
}

TEST(Poison, AreasAreNaNBeforeTheyAreWritten) {
  const Plan plan = two_areas();
  std::vector<std::byte> workspace(256);
  const Poison poison(plan, workspace.data());
  poison.before_forward();
  float value = 0;
  std::memcpy(&value, workspace.data() + 64, sizeof value);
  EXPECT_TRUE(std::isnan(value));
}

TEST(Poison, ReportsTheAreaInFrontOfABrokenCanary) {
  const Plan plan = two_areas();
  std::vector<std::byte> workspace(256);
  const Poison poison(plan, workspace.data());
  poison.before_forward();
  EXPECT_EQ(poison.broken_canary(), nullptr);
  workspace[63] = std::byte{0};
  EXPECT_STREQ(poison.broken_canary(), "logits");
  poison.before_forward();
  workspace[192] = std::byte{0};
  EXPECT_STREQ(poison.broken_canary(), "rows");
}

TEST(Poison, AreasDieWithTheirLastStage) {
  const Plan plan = two_areas();
  std::vector<std::byte> workspace(256);
  const Poison poison(plan, workspace.data());
  std::memset(workspace.data(), 0, 256);
  poison.leave(StageId::route);
  EXPECT_EQ(workspace[0], std::byte{0xFF});
  EXPECT_EQ(workspace[64], std::byte{0});
  poison.enter(StageId::experts);
  EXPECT_EQ(workspace[191], std::byte{0xFF});
}

TEST(Poison, FindsTheFirstRowWithUncleanPadding) {
  std::vector<std::byte> rows(3 * 8);
  EXPECT_EQ(first_unclean_padding(rows.data(), 3, 8, 3, 4, 2), -1);
  rows[8 + 5] = std::byte{1};  // a valid element
  EXPECT_EQ(first_unclean_padding(rows.data(), 3, 8, 3, 4, 2), -1);
  rows[16 + 7] = std::byte{1};
  EXPECT_EQ(first_unclean_padding(rows.data(), 3, 8, 3, 4, 2), 2);
}

}  // namespace
}  // namespace motet
