// SPDX-License-Identifier: Apache-2.0
#include "formats/activation/scale_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <type_traits>
#include <vector>

namespace motet {
namespace {

using Rows = std::vector<std::int64_t>;
constexpr std::int64_t kRowCounts[] = {0, 1, 2, 16, 127, 128, 129};
constexpr std::int64_t kGroupCounts[] = {1, 2, 3, 4, 5, 6, 23, 180};
constexpr auto kPoison = static_cast<E8m0>(0xEE);

/// Misuse that must not compile: no layout is another's argument, and no element type another's.
template <class From, class To>
constexpr bool kMixes = std::is_convertible_v<From, To> || std::is_constructible_v<To, From> || std::is_assignable_v<To&, From>;
static_assert(!kMixes<FlatScales<E8m0>, SwizzledScales128x4<E8m0>> && !kMixes<SwizzledScales128x4<E8m0>, FlatScales<E8m0>>);
static_assert(!kMixes<LinearScales<E8m0>, SwizzledScales128x4<E8m0>> && !kMixes<SwizzledScales128x4<E8m0>, LinearScales<E8m0>>);
static_assert(!kMixes<LinearScales<E8m0>, FlatScales<E8m0>> && !kMixes<FlatScales<E8m0>, LinearScales<E8m0>>);
static_assert(!kMixes<LinearScales<E8m0>, LinearScales<E4m3>> && !kMixes<LinearScales<float>, LinearScales<E8m0>>);
static_assert(!kMixes<LinearScales<const E8m0>, LinearScales<E8m0>>);
static_assert(std::is_convertible_v<LinearScales<E8m0>, LinearScales<const E8m0>>, "the test of misuse can also say yes");

/// A layout's bytes with a guard byte behind them.
struct Bytes {
  explicit Bytes(std::int64_t count) : data(static_cast<std::size_t>(count) + 1, kPoison) {}
  bool guard_intact() const { return data.back() == kPoison; }
  std::vector<E8m0> data;
};

/// Scales that differ from their neighbours; never the padding byte 0.
std::vector<E8m0> distinct_scales(std::int64_t rows, std::int64_t groups) {
  std::vector<E8m0> scales;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < groups; ++g) scales.push_back(static_cast<E8m0>(1 + (r * 37 + g * 11) % 251));
  }
  return scales;
}

TEST(L6, Swizzled128x4OffsetsAreTheWorkedOnes) {
  const std::int64_t worked[][3] = {{0, 0, 0},  {0, 3, 3},   {0, 4, 512},   {1, 0, 16},     {31, 0, 496},
                                    {32, 0, 4}, {96, 2, 14}, {127, 3, 511}, {128, 0, 1024}, {130, 5, 1569}};
  for (const auto& [row, group, byte] : worked) EXPECT_EQ(swizzled_128x4_offset(row, group, 6), byte) << row << ", " << group;
}

TEST(L6, SwizzledOffsetsFillWholeTilesOnce) {
  std::set<std::int64_t> seen;
  for (std::int64_t row = 0; row < 256; ++row)
    for (std::int64_t group = 0; group < 8; ++group) seen.insert(swizzled_128x4_offset(row, group, 8));
  EXPECT_EQ(seen.size(), 2048u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 2047);
}

TEST(L6, FlatAndLinearAreViewsOfTheSameBytes) {
  for (const std::int64_t rows : kRowCounts) {
    for (const std::int64_t groups : kGroupCounts) {
      std::vector<E8m0> bytes = distinct_scales(rows, groups);
      const LinearScales<E8m0> linear{bytes.data(), rows, groups};
      const FlatScales<E8m0> flat = flat_view(linear);
      EXPECT_EQ(flat.data, bytes.data());
      EXPECT_EQ(flat.count, rows * groups);
      const auto back = linear_view(flat, rows, groups);
      ASSERT_TRUE(back.has_value());
      EXPECT_EQ(back->data, bytes.data());
      EXPECT_EQ(back->rows, rows);
      EXPECT_EQ(back->groups, groups);  // [0, groups] keeps its groups
      EXPECT_FALSE(linear_view(flat, rows + 1, groups).has_value());
    }
  }
}

TEST(L6, SwizzlingEveryRowCountRoundTripsAndPadsWithZero) {
  for (const std::int64_t rows : kRowCounts) {
    for (const std::int64_t groups : kGroupCounts) {
      const std::vector<E8m0> scales = distinct_scales(rows, groups);
      const Rows expert_rows = {rows};
      const std::int64_t count = (rows + 127) / 128 * 128 * ((groups + 3) / 4 * 4);
      EXPECT_EQ(swizzled_128x4_count(expert_rows, groups), count);
      Bytes swizzled(count);
      linear_to_swizzled_128x4({scales.data(), rows, groups}, {swizzled.data.data(), expert_rows, groups});
      std::vector<bool> valid(static_cast<std::size_t>(count));
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t g = 0; g < groups; ++g) {
          const std::int64_t tile = (r / 128) * ((groups + 3) / 4) + g / 4, lane = r % 32, quarter = r / 32 % 4;
          const std::int64_t byte = tile * 512 + lane * 16 + quarter * 4 + g % 4;
          valid[byte] = true;
          ASSERT_EQ(swizzled.data[byte], scales[r * groups + g]) << rows << " x " << groups << " at " << r << ", " << g;
        }
      }
      for (std::int64_t b = 0; b < count; ++b) ASSERT_TRUE(valid[b] || swizzled.data[b] == E8m0{0}) << "padding byte " << b;
      EXPECT_TRUE(swizzled.guard_intact());
      Bytes back(rows * groups);
      swizzled_128x4_to_linear({swizzled.data.data(), expert_rows, groups}, {back.data.data(), rows, groups});
      EXPECT_TRUE(std::equal(scales.begin(), scales.end(), back.data.begin()));
      EXPECT_TRUE(back.guard_intact());
    }
  }
}

TEST(L6, EveryExpertStartsItsOwnTile) {
  const Rows expert_rows = {1, 0, 129, 128, 2};
  const std::int64_t groups = 6, rows = 260;
  const std::vector<E8m0> scales = distinct_scales(rows, groups);
  ASSERT_EQ(swizzled_128x4_count(expert_rows, groups), 1024 + 0 + 2048 + 1024 + 1024);
  Bytes swizzled(5120);
  linear_to_swizzled_128x4({scales.data(), rows, groups}, {swizzled.data.data(), expert_rows, groups});
  const std::int64_t begins[] = {0, 1024, 1024, 3072, 4096};
  for (std::int64_t e = 0, row = 0; e < 5; ++e) {
    for (std::int64_t r = 0; r < expert_rows[e]; ++r, ++row) {
      for (std::int64_t g = 0; g < groups; ++g) {
        ASSERT_EQ(swizzled.data[begins[e] + swizzled_128x4_offset(r, g, groups)], scales[row * groups + g])
            << e << ", " << r << ", " << g;
      }
    }
  }
  Bytes back(rows * groups);
  swizzled_128x4_to_linear({swizzled.data.data(), expert_rows, groups}, {back.data.data(), rows, groups});
  EXPECT_TRUE(std::equal(scales.begin(), scales.end(), back.data.begin()));
  EXPECT_TRUE(back.guard_intact());
}

TEST(L6, ReadingSwizzledScalesAsLinearGivesOtherScales) {
  const Rows expert_rows = {128};
  const std::vector<E8m0> scales = distinct_scales(128, 4);
  Bytes swizzled(512);
  linear_to_swizzled_128x4({scales.data(), 128, 4}, {swizzled.data.data(), expert_rows, 4});
  EXPECT_FALSE(std::equal(scales.begin(), scales.end(), swizzled.data.begin()));
}

TEST(L17, SwizzledCountRefusesWhatDoesNotFit) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(swizzled_128x4_count(Rows{kLargest}, 1), std::nullopt);
  EXPECT_EQ(swizzled_128x4_count(Rows{1}, kLargest), std::nullopt);
  EXPECT_EQ(swizzled_128x4_count(Rows{std::int64_t{1} << 40}, std::int64_t{1} << 30), std::nullopt);
  EXPECT_EQ(swizzled_128x4_count(Rows(8, std::int64_t{1} << 40), std::int64_t{1} << 20), std::nullopt);
  EXPECT_EQ(swizzled_128x4_count(Rows{-1}, 4), std::nullopt);
  EXPECT_EQ(swizzled_128x4_count(Rows{std::int64_t{1} << 33}, 8), std::int64_t{1} << 36);  // beyond 32 bits and fine
  EXPECT_EQ(linear_view(FlatScales<E8m0>{nullptr, 0}, std::int64_t{1} << 33, std::int64_t{1} << 31),
            std::nullopt);  // 2^64 wraps to 0
}

TEST(L6DeathTest, SwizzlingOtherExtentsEndsTheProgram) {
  const std::vector<E8m0> scales = distinct_scales(3, 4);
  const Rows expert_rows = {2};
  Bytes swizzled(512);
  EXPECT_DEATH(linear_to_swizzled_128x4({scales.data(), 3, 4}, {swizzled.data.data(), expert_rows, 4}),
               "linear \\[3, 4\\], swizzled \\[2, 4\\]");
}

}  // namespace
}  // namespace motet
