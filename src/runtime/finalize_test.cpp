// SPDX-License-Identifier: Apache-2.0
#include "runtime/finalize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace motet {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  std::vector<float> rows;
  std::vector<std::int32_t> row_of, expert;
  std::vector<float> weight;
  std::int64_t tokens = 0, top_k = 0, width = 0, stride = 0;

  std::vector<float> run(bool weigh = true, RowHook hook = nullptr, void* context = nullptr) {
    std::vector<float> routed(static_cast<std::size_t>(tokens * width), -7.0f);
    finalize_tokens({.rows = rows.data(),
                     .rows_stride = stride,
                     .width = width,
                     .top_k = top_k,
                     .row_of = row_of.data(),
                     .expert = expert.data(),
                     .weight = weight.data(),
                     .weigh = weigh,
                     .hook = hook,
                     .hook_context = context,
                     .routed = routed.data()},
                    0, tokens);
    return routed;
  }
};

/// Two tokens of top-2, width 2 stored as 3 with NaN in the padding; token 1 has one expert only and NaN as its absent weight.
Case small_case() {
  return {.rows = {1, 2, kNaN, 10, 20, kNaN, 100, 200, kNaN},
          .row_of = {2, 0, -1, 1},
          .expert = {5, 1, -1, 3},
          .weight = {0.5f, 2, kNaN, 3},
          .tokens = 2,
          .top_k = 2,
          .width = 2,
          .stride = 3};
}

TEST(Finalize, WeighsAndSumsInOrderOfK) { EXPECT_EQ(small_case().run(), (std::vector<float>{52, 104, 30, 60})); }

TEST(Finalize, EachTermAndEachSumIsRoundedOnce) {
  // 1 + 2^-24 rounds to 1, then + 2^-24 again: an order or a contraction that keeps the small terms together would give 1 + 2^-23.
  const float tiny = 0x1p-24f;
  Case sums{.rows = {1, tiny, tiny},
            .row_of = {0, 1, 2},
            .expert = {0, 1, 2},
            .weight = {1, 1, 1},
            .tokens = 1,
            .top_k = 3,
            .width = 1,
            .stride = 1};
  EXPECT_EQ(sums.run()[0], 1.0f);
  // w * y = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11 before the sum; a fused multiply-add would keep 2^-24 and give 2^-24.
  const float factor = 1 + 0x1p-12f;
  Case fused{.rows = {-(1 + 0x1p-11f), factor},
             .row_of = {0, 1},
             .expert = {0, 1},
             .weight = {1, factor},
             .tokens = 1,
             .top_k = 2,
             .width = 1,
             .stride = 1};
  EXPECT_EQ(fused.run()[0], 0.0f);
}

TEST(Finalize, WithInputWeightingRowsAreSummedAsTheyAre) {
  EXPECT_EQ(small_case().run(false), (std::vector<float>{101, 202, 10, 20}));
}

void identity(void*, const HookRow& row) noexcept {
  for (std::int64_t i = 0; i < row.width; ++i) row.row[i] *= row.weight;
}

TEST(Finalize, IdentityHookGivesTheSameBits) {
  Case builtin = small_case(), hooked = small_case();
  for (std::size_t i = 0; i < builtin.rows.size(); ++i) builtin.rows[i] = hooked.rows[i] = std::sin(static_cast<float>(i) + 0.1f);
  builtin.weight = hooked.weight = {0.3f, 0.7f, kNaN, 0.9f};
  EXPECT_EQ(builtin.run(), hooked.run(true, identity));
}

TEST(Finalize, HookSeesEachLiveRowOnceWithItsMetadata) {
  struct Seen {
    std::vector<std::int64_t> token, k, width;
    std::vector<ExpertId> expert;
    std::vector<float> weight;
  } seen;
  small_case().run(
      true,
      [](void* context, const HookRow& row) noexcept {
        auto& out = *static_cast<Seen*>(context);
        out.token.push_back(row.token);
        out.k.push_back(row.k);
        out.width.push_back(row.width);
        out.expert.push_back(row.expert);
        out.weight.push_back(row.weight);
      },
      &seen);
  EXPECT_EQ(seen.token, (std::vector<std::int64_t>{0, 0, 1}));
  EXPECT_EQ(seen.k, (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(seen.width, (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(seen.expert, (std::vector<ExpertId>{ExpertId{5}, ExpertId{1}, ExpertId{3}}));
  EXPECT_EQ(seen.weight, (std::vector<float>{0.5f, 2, 3}));
}

TEST(Finalize, TokenWithoutExpertsIsZero) {
  Case none{.rows = {kNaN}, .row_of = {-1}, .expert = {-1}, .weight = {kNaN}, .tokens = 1, .top_k = 1, .width = 1, .stride = 1};
  EXPECT_EQ(none.run(), (std::vector<float>{0}));
}

}  // namespace
}  // namespace motet
