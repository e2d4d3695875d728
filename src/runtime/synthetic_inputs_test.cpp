// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/numbers.h"
#include "motet/verify.h"
#include "runtime/check_runs.h"

namespace motet {
namespace {

TEST(SyntheticHiddenStates, AreBf16ValuesOfUnitVariance) {
  const std::vector<float> values = synthetic_hidden_states(64, 512, 7);
  double sum = 0, squares = 0;
  for (const float value : values) {
    EXPECT_EQ(value, bf16_to_f32(f32_to_bf16(value)));
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const double count = static_cast<double>(values.size());
  EXPECT_LT(std::abs(sum / count), 5 / std::sqrt(count));              // five standard errors of the mean
  EXPECT_LT(std::abs(squares / count - 1), 5 * std::sqrt(2 / count));  // and of the variance
}

TEST(SyntheticHiddenStates, DependOnTheSeedAlone) {
  EXPECT_EQ(synthetic_hidden_states(3, 5, 1), synthetic_hidden_states(3, 5, 1));
  EXPECT_NE(synthetic_hidden_states(3, 5, 1), synthetic_hidden_states(3, 5, 2));
}

/// Share of all choices that the busiest eighth of the experts gets.
double busiest_share(RoutingPattern pattern) {
  LayerSpec spec = check_shape("intermediate-720-scaled");
  spec.experts = 64;
  spec.top_k = 4;
  std::vector<std::int32_t> index;
  std::vector<float> weights;
  synthetic_routing(spec, 512, pattern, 3, index, weights);
  std::vector<int> counts(64);
  for (std::size_t i = 0; i < index.size(); i += 4) {
    EXPECT_EQ(
        std::set<std::int32_t>(index.begin() + static_cast<std::ptrdiff_t>(i), index.begin() + static_cast<std::ptrdiff_t>(i) + 4)
            .size(),
        4u);
    EXPECT_NEAR(weights[i] + weights[i + 1] + weights[i + 2] + weights[i + 3], 1, 4 * 0x1p-23);
    for (std::size_t k = 0; k < 4; ++k) ++counts[static_cast<std::size_t>(index[i + k])];
  }
  std::sort(counts.rbegin(), counts.rend());
  return static_cast<double>(counts[0] + counts[1] + counts[2] + counts[3] + counts[4] + counts[5] + counts[6] + counts[7]) /
         (512 * 4);
}

TEST(SyntheticRouting, ZipfFavoursFewExpertsUniformDoesNot) {
  const double fair = 8.0 / 64, uniform = busiest_share(RoutingPattern::uniform), zipf = busiest_share(RoutingPattern::zipf);
  EXPECT_LT(uniform, 2 * fair);  // 32 draws an expert scatter by 18 %, far below twice the mean
  EXPECT_GT(zipf, 2 * uniform);
}

TEST(SyntheticRouting, RefusesMoreChoicesThanExperts) {
  LayerSpec spec = check_shape("intermediate-720-scaled");
  spec.top_k = spec.experts + 1;
  std::vector<std::int32_t> index;
  std::vector<float> weights;
  EXPECT_THROW(synthetic_routing(spec, 1, RoutingPattern::uniform, 1, index, weights), Error);
}

}  // namespace
}  // namespace motet
