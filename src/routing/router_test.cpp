// SPDX-License-Identifier: Apache-2.0
#include "routing/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "routing/router_names.h"

namespace motet {
namespace {

using Ids = std::vector<std::int32_t>;
using Floats = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kHalfPrintedDigit = 0.5e-6;  ///< the worked values are printed with six decimals

struct Choice {
  Ids index;
  Floats weight;
};

struct Token {
  RouterSpec spec;
  Floats logits;
  std::int64_t top_k = 2;
  Floats bias{}, expert_scale{};
  Ids table{};
};

Choice route(const Token& token) {
  const auto count = static_cast<std::int64_t>(token.logits.size());
  Choice out{Ids(token.top_k, -7), Floats(token.top_k, -7)};
  Floats scratch(route_scratch_floats(count));
  route_token({.spec = &token.spec,
               .experts = count - token.spec.zero_experts,
               .top_k = token.top_k,
               .logits = token.logits.data(),
               .selection_bias = token.bias.empty() ? nullptr : token.bias.data(),
               .per_expert_scale = token.expert_scale.empty() ? nullptr : token.expert_scale.data(),
               .hash_experts = token.table.empty() ? nullptr : token.table.data(),
               .scratch = scratch.data(),
               .index = out.index.data(),
               .weight = out.weight.data()});
  return out;
}

RouterSpec named(const char* name) {
  const NamedRouter* router = find_router(name);
  EXPECT_NE(router, nullptr) << name;
  return router ? router->spec : RouterSpec{};
}

void expect_choice(const Token& token, const Ids& index, const std::vector<double>& weight) {
  const Choice got = route(token);
  EXPECT_EQ(got.index, index);
  ASSERT_EQ(got.weight.size(), weight.size());
  for (std::size_t k = 0; k < weight.size(); ++k) EXPECT_NEAR(got.weight[k], weight[k], kHalfPrintedDigit) << k;
}

const Floats kLogits = {1.0f, 2.0f, 0.5f, 1.9f, -1.0f, 0.0f, 1.5f, -0.5f};
const Floats kBias = {0.0f, -0.3f, 0.1f, 0.0f, 0.4f, 0.0f, 0.0f, 0.0f};

// ---------------------------------------------------------------- worked values

TEST(Router, SoftmaxKeepsProbabilities) { expect_choice({named("softmax"), kLogits}, {1, 3}, {0.296772, 0.268531}); }
TEST(Router, SoftmaxDividedBySum) { expect_choice({named("softmax_sum"), kLogits}, {1, 3}, {0.524979, 0.475021}); }
TEST(Router, TopKThenSoftmax) { expect_choice({named("top_k_softmax"), kLogits}, {1, 3}, {0.524979, 0.475021}); }
TEST(Router, SigmoidOfTheChosenLogit) { expect_choice({named("sigmoid_input"), kLogits, 1}, {1}, {0.880797}); }
TEST(Router, SqrtSoftplusWithBias) {
  expect_choice({named("sqrt_softplus_bias"), kLogits, 2, kBias}, {3, 6}, {0.783950, 0.716050});
}

TEST(Router, SigmoidKeepsGroupsBySumOfTwo) {
  RouterSpec spec = named("sigmoid_group_sum");
  spec.groups = 2;
  spec.groups_kept = 1;
  expect_choice({spec, kLogits, 2, kBias}, {3, 0}, {1.358399, 1.141601});
  spec.groups = spec.groups_kept = 1;
  expect_choice({spec, kLogits, 2, kBias}, {3, 6}, {1.288754, 1.211246});
}

TEST(Router, BiasChoosesAndDoesNotWeigh) {
  Floats bias = kBias;
  for (float& b : bias) b *= 0.1f;
  expect_choice({named("softmax_bias"), kLogits, 2, bias}, {3, 1}, {0.475021, 0.524979});
}

TEST(Router, SparsemixerWeighsAmongNearTies) {
  expect_choice({named("sparsemixer"), {1.0f, 2.0f, 0.5f, 1.97f, -1.0f, 0.0f, 1.95f, -0.5f}}, {1, 3}, {0.507499, 0.505000});
}

TEST(Router, DroppedGroupsAreMinusInfinityNotZero) {
  RouterSpec spec = named("sigmoid_group_sum");
  spec.groups = 2;
  spec.groups_kept = 1;
  spec.scale = 1;
  const Token token{spec, {0.5f, 0.4f, -3, -3, 0, 0, 0, 0}, 3, {0, 0, -1, -1, -0.9f, -0.9f, -0.9f, -0.9f}};
  expect_choice(token, {0, 1, 2}, {0.490677, 0.471938, 0.037385});  // masking with 0.0 would choose 0, 1, 4
}

// ---------------------------------------------------------------- sparsemixer's corners

TEST(Router, SparsemixerDividesByTheOwnMagnitudeUnderANegativeMaximum) {
  // m = -1: l = -1.0203 has 0.0203 / 1.0203 <= 0.02 and stays (0.0203 / |m| would not); l = -1.03 has 0.0291 and goes.
  const Choice got = route({named("sparsemixer"), {-1.0f, -1.0203f, -1.03f, -5.0f}, 1});
  EXPECT_EQ(got.index, Ids{0});
  EXPECT_NEAR(got.weight[0], 1 / (1 + std::exp(-0.0203)), kHalfPrintedDigit);
}

TEST(Router, SparsemixerOfAZeroMaximumKeepsOnlyZeros) {
  const Choice got = route({named("sparsemixer"), {-1.0f, 0.0f, 0.0f, -0.001f}, 2});
  EXPECT_EQ(got.index, (Ids{1, 2}));
  EXPECT_EQ(got.weight, (Floats{0.5f, 1.0f}));
}

TEST(Router, SparsemixerSecondPassIgnoresTheFirstChoice) {
  const Choice got = route({named("sparsemixer"), {10.0f, 1.0f, -2.0f}, 2});
  EXPECT_EQ(got.index, (Ids{0, 1}));
  EXPECT_EQ(got.weight, (Floats{1.0f, 1.0f}));
}

// ---------------------------------------------------------------- order, ties, sizes

TEST(TopK, BreaksTiesByLowestExpert) {
  for (const NamedRouter& router : named_routers()) {
    if (router.spec.selection == RouterSelection::hash) continue;
    const std::int64_t experts = 16, count = experts + router.spec.zero_experts;
    const Choice got = route({router.spec, Floats(count, 0.25f), 5, Floats(count, 0.5f), Floats(experts, 1.0f)});
    EXPECT_EQ(got.index, (Ids{0, 1, 2, 3, 4})) << router.name;
  }
}

TEST(TopK, MinusZeroTiesWithZero) { EXPECT_EQ(route({named("softmax"), {-0.0f, 0.0f, -0.0f}, 3}).index, (Ids{0, 1, 2})); }

TEST(TopK, EqualExpertCountReturnsEveryExpertOnceBestFirst) {
  for (const NamedRouter& router : named_routers()) {
    if (router.spec.selection == RouterSelection::hash) continue;
    Token token{router.spec, Floats(16 + router.spec.zero_experts)};
    for (std::size_t i = 0; i < token.logits.size(); ++i) token.logits[i] = static_cast<float>((i * 7) % 16) / 8 - 1;
    token.top_k = static_cast<std::int64_t>(token.logits.size());
    token.bias.assign(token.logits.size(), 0.0f);
    token.expert_scale.assign(16, 1.0f);
    token.spec.groups = 1;
    const Choice got = route(token);
    Ids sorted = got.index, all(token.top_k);
    std::sort(sorted.begin(), sorted.end());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all) << router.name;
    for (std::size_t k = 1; k < got.index.size(); ++k)
      EXPECT_GE(token.logits[got.index[k - 1]], token.logits[got.index[k]]) << router.name;
  }
}

TEST(TopK, DistinctLogitsDoNotTieWhereScoresSaturate) {
  EXPECT_EQ(route({named("sigmoid_input"), {40.0f, 41.0f, 42.0f}, 2}).index, (Ids{2, 1}));
  RouterSpec sigmoid;
  sigmoid.score = RouterScore::sigmoid;
  EXPECT_EQ(route({sigmoid, {40.0f, 41.0f, 42.0f}, 2}).index, (Ids{2, 1}));
  EXPECT_EQ(route({named("softmax"), {0.0f, -200.0f, -199.0f}, 2}).index, (Ids{0, 2}));
}

TEST(Groups, KeepingAllEqualsNoGroups) {
  RouterSpec grouped = named("sigmoid_group_sum"), plain = grouped;
  grouped.groups = grouped.groups_kept = 4;
  plain.groups = plain.groups_kept = 1;
  const Choice a = route({grouped, kLogits, 3, kBias}), b = route({plain, kLogits, 3, kBias});
  EXPECT_EQ(a.index, b.index);
  EXPECT_EQ(a.weight, b.weight);
}

TEST(Groups, MaxAndSumOfTwoKeepDifferentGroups) {
  RouterSpec spec = named("softmax_group_max");
  spec.groups = 2;
  spec.groups_kept = 1;
  const Floats logits = {3.0f, -9.0f, -9.0f, -9.0f, 2.9f, 2.9f, 0.0f, 0.0f};
  EXPECT_EQ(route({spec, logits, 2}).index, (Ids{0, 1}));
  spec.group_score = GroupScore::sum_of_two;
  EXPECT_EQ(route({spec, logits, 2}).index, (Ids{4, 5}));
}

TEST(Groups, TiedGroupsKeepTheLower) {
  RouterSpec spec = named("softmax_group_max");
  spec.groups = 4;
  spec.groups_kept = 2;
  EXPECT_EQ(route({spec, Floats(8, 1.0f), 4}).index, (Ids{0, 1, 2, 3}));
}

TEST(Groups, OfOneExpertScoreByThatExpert) {
  RouterSpec spec = named("sigmoid_group_sum");
  spec.groups = 8;
  spec.groups_kept = 2;
  EXPECT_EQ(route({spec, kLogits, 2, kBias}).index, (Ids{3, 6}));
}

TEST(Groups, FewerKeptThanTopKFillsFromDroppedByLowestExpert) {
  RouterSpec spec = named("softmax_group_max");
  spec.groups = 4;
  spec.groups_kept = 1;
  EXPECT_EQ(route({spec, {0, 1, 2, 3, 9, 8, 4, 5}, 4}).index, (Ids{4, 5, 0, 1}));
}

// ---------------------------------------------------------------- scale, hash, zero experts, caps

TEST(L5, RouterScaleIsAppliedExactlyOnceAndOnlyAtItsSite) {
  for (const NamedRouter& router : named_routers()) {
    const std::int64_t experts = 8, count = experts + router.spec.zero_experts;
    Token token{router.spec, kLogits, 2, Floats(count, 0.0f), Floats(experts, 1.0f), {5, 2}};
    token.logits.resize(count, -3.0f);
    if (token.spec.groups > 1) token.spec.groups = token.spec.groups_kept = 2;
    token.spec.scale = 1;
    const Choice once = route(token);
    token.spec.scale = 4;  // a power of two: products are exact
    const Choice scaled = route(token);
    const float factor = token.spec.scale_site == ScaleSite::weights ? 4.0f : 1.0f;
    EXPECT_EQ(once.index, scaled.index) << router.name;
    for (int k = 0; k < 2; ++k) EXPECT_EQ(scaled.weight[k], factor * once.weight[k]) << router.name;
  }
}

TEST(Router, WeightSiteChangesNoWeight) {
  Token token{named("sigmoid_input"), kLogits, 3};
  const Choice at_input = route(token);
  token.spec.weight_site = WeightSite::finalize;
  EXPECT_EQ(route(token).weight, at_input.weight);
}

TEST(Router, HashTakesTheTablesExpertsInItsOrder) {
  const Choice got = route({named("sqrt_softplus_hash"), kLogits, 2, {}, {}, {5, 1}});
  EXPECT_EQ(got.index, (Ids{5, 1}));
  const double a = std::sqrt(std::log1p(std::exp(0.0))), b = std::sqrt(std::log1p(std::exp(2.0)));
  EXPECT_NEAR(got.weight[0], 1.5 * a / (a + b), kHalfPrintedDigit);
  EXPECT_NEAR(got.weight[1], 1.5 * b / (a + b), kHalfPrintedDigit);
}

TEST(Router, ZeroExpertsAreChosenWeighedAndScaled) {
  RouterSpec spec = named("softmax_zero_experts");
  spec.zero_experts = 3;
  spec.per_expert_scale = true;  // has no entry for zero experts
  const Floats logits = {0, 0, 0, 0, 0, 1, 0, 2};
  const Choice got = route({spec, logits, 3, Floats(8, 0.0f), Floats(5, 2.0f)});
  EXPECT_EQ(got.index, (Ids{7, 5, 0}));
  const double sum = 6 + std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(got.weight[0], 6 * std::exp(2.0) / sum, 6 * kHalfPrintedDigit);
  EXPECT_NEAR(got.weight[2], 2 * 6 / sum, 6 * kHalfPrintedDigit);
}

TEST(Router, SoftCapBoundsLogits) {
  RouterSpec spec;
  spec.score = RouterScore::logits;
  spec.soft_cap = 2;
  const Choice got = route({spec, {1.0f, kInf, -kInf, 100.0f}, 4});
  EXPECT_EQ(got.index, (Ids{1, 3, 0, 2}));  // capped 2, 2, 0.92, -2: the tie goes to the lower expert
  EXPECT_EQ(got.weight[0], 2.0f);
  EXPECT_NEAR(got.weight[2], 2 * std::tanh(0.5), kHalfPrintedDigit);
}

TEST(Router, NormalizeFloorAndEpsilonDivide) {
  RouterSpec spec;
  spec.score = RouterScore::sigmoid;
  spec.normalize = RouterNormalize::sum;
  spec.normalize_floor = 4;
  EXPECT_EQ(route({spec, {0.0f, 0.0f}, 2}).weight, (Floats{0.125f, 0.125f}));
  spec.normalize_floor = 0;
  spec.normalize_epsilon = 1;
  EXPECT_EQ(route({spec, {0.0f, 0.0f}, 2}).weight, (Floats{0.25f, 0.25f}));
}

TEST(Router, EpsilonTurnsVanishedScoresIntoZeroAndItsAbsenceIntoNaN) {
  RouterSpec spec = named("sqrt_softplus_bias");
  EXPECT_EQ(route({spec, {-kInf, -kInf}, 2, {0, 0}}).weight, (Floats{0.0f, 0.0f}));
  spec.normalize_epsilon = 0;
  EXPECT_TRUE(std::isnan(route({spec, {-kInf, -kInf}, 2, {0, 0}}).weight[0]));
}

TEST(Router, SigmoidsOfVeryNegativeLogitsDoNotVanish) {
  RouterSpec spec;
  spec.score = RouterScore::sigmoid;
  spec.normalize = RouterNormalize::sum;
  EXPECT_EQ(route({spec, {-95.0f, -95.0f}, 2}).weight, (Floats{0.5f, 0.5f}));
}

// ---------------------------------------------------------------- NaN and infinity

TEST(Router, TokenOfNaNGetsValidDistinctIdsAndNaNWeights) {
  for (const NamedRouter& router : named_routers()) {
    const std::int64_t experts = 16, count = experts + router.spec.zero_experts;
    const Choice got = route({router.spec, Floats(count, kNaN), 4, Floats(count, 0.1f), Floats(experts, 1.0f), {3, 1, 4, 2}});
    for (std::size_t k = 0; k < 4; ++k) {
      EXPECT_TRUE(got.index[k] >= 0 && got.index[k] < count) << router.name;
      EXPECT_EQ(std::count(got.index.begin(), got.index.end(), got.index[k]), 1) << router.name;
    }
    const bool plain = router.spec.groups == 1 && router.spec.selection != RouterSelection::hash;
    EXPECT_TRUE(!plain || got.index == (Ids{0, 1, 2, 3})) << router.name;
    for (float w : got.weight) EXPECT_TRUE(std::isnan(w)) << router.name;
  }
}

TEST(Router, NaNRanksBelowMinusInfinity) {
  const Choice got = route({named("top_k_softmax"), {kNaN, -kInf, 1.0f, kNaN}, 3});
  EXPECT_EQ(got.index, (Ids{2, 1, 0}));
  for (float w : got.weight) EXPECT_TRUE(std::isnan(w));  // the chosen NaN entered their sum
}

TEST(Router, NaNLeavesOnlyTheWeightsItEnters) {
  const Floats logits = {0.5f, kNaN, 2.0f, 1.0f};
  EXPECT_TRUE(std::isnan(route({named("softmax_sum"), logits, 2}).weight[0]));  // softmax sums over every expert
  const Choice got = route({named("top_k_softmax"), logits, 2});
  EXPECT_EQ(got.index, (Ids{2, 3}));
  EXPECT_FALSE(std::isnan(got.weight[0]) || std::isnan(got.weight[1]));
  EXPECT_EQ(route({named("softmax_bias"), logits, 2, Floats(4, 0.0f)}).index, (Ids{2, 3}));
}

TEST(Router, GroupOfNaNIsDroppedBeforeAnyNumber) {
  RouterSpec spec = named("sigmoid_group_sum");
  spec.groups = 2;
  spec.groups_kept = 1;
  EXPECT_EQ(route({spec, {kNaN, kNaN, -30.0f, -31.0f}, 2, Floats(4, 0.0f)}).index, (Ids{2, 3}));
}

TEST(Router, InfiniteLogitsShareTheSoftmax) {
  EXPECT_EQ(route({named("softmax"), {1.0f, kInf, 0.0f, kInf}, 3}).weight, (Floats{0.5f, 0.5f, 0.0f}));
  EXPECT_EQ(route({named("softmax_sum"), {-kInf, 0.0f, -kInf}, 2}).weight, (Floats{1.0f, 0.0f}));
  EXPECT_EQ(route({named("top_k_softmax"), {-kInf, -kInf, -kInf, -kInf}, 2}).weight, (Floats{0.5f, 0.5f}));
  EXPECT_EQ(route({named("sigmoid_input"), {-kInf, kInf}, 2}).weight, (Floats{1.0f, 0.0f}));
  EXPECT_EQ(route({named("sparsemixer"), {-kInf, kInf, 3.0f}, 2}).weight, (Floats{1.0f, 1.0f}));
}

TEST(Router, LargeFiniteLogitsStayFinite) {
  for (const NamedRouter& router : named_routers()) {
    Token token{router.spec, Floats(8 + router.spec.zero_experts, -3e38f), 2, {}, Floats(8, 1.0f), {1, 2}};
    token.logits[1] = 3e38f;
    token.logits[2] = 3e38f;
    token.bias.assign(token.logits.size(), 0.0f);
    const Choice got = route(token);
    EXPECT_EQ(got.index, (Ids{1, 2})) << router.name;
    for (float w : got.weight) EXPECT_TRUE(std::isfinite(w)) << router.name;
  }
}

// ---------------------------------------------------------------- names

TEST(RouterNames, AreDistinctAndFindable) {
  EXPECT_GE(named_routers().size(), 15u);
  for (const NamedRouter& router : named_routers()) {
    EXPECT_EQ(find_router(router.name), &router);
    EXPECT_FALSE(router.about.empty());
  }
  EXPECT_EQ(find_router("no_such_router"), nullptr);
}

}  // namespace
}  // namespace motet
