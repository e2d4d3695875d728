// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <gtest/gtest.h>

#include "fabric/testing.h"
#include "plan/fake_catalog.h"

namespace motet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Plan plan_of(const LayerSpec& spec, const Environment& environment = fake::environment(), std::int64_t tokens = 4) {
  return plan_with(spec, fake::with_backend("narrow", tokens), environment, fake::catalog()).value();
}

class Agreements : public ::testing::TestWithParam<testing::Way> {};

TEST_P(Agreements, OfEqualPlansAreReachedWhateverHostsMayDifferIn) {
  GetParam().run(4, [](Endpoint& end) {
    Environment own = fake::environment();
    own.threads = 1 + end.rank();
    own.memory_bytes += end.rank() << 20;
    Agreement agreement(end);
    EXPECT_FALSE(agreement.compare(plan_of(fake::gpt_oss(), own), end.now() + seconds(60)));
    EXPECT_FALSE(agreement.compare(plan_of(fake::nemotron(0)), end.now() + seconds(60))) << "for the next layer";
  });
}

/// Rank 2 has another plan: every rank hears of it with the field's name, and of the next layer all agree.
void expect_named(const testing::Way& way, const std::string& field, const Plan& common, const Plan& odd) {
  way.run(4, [&](Endpoint& end) {
    Agreement agreement(end);
    const auto difference = agreement.compare(end.rank() == 2 ? odd : common, end.now() + seconds(60));
    ASSERT_TRUE(difference.has_value()) << field;
    EXPECT_EQ(difference->field, field);
    EXPECT_EQ(difference->rank, end.rank() == 2 ? 0 : 2);
    EXPECT_FALSE(difference->mine.empty());
    EXPECT_FALSE(agreement.compare(common, end.now() + seconds(60))) << "the step after a failed one is clean";
  });
}

TEST_P(Agreements, NameTheFieldThatDiffersOnAllRanks) {
  const Plan common = plan_of(fake::gpt_oss());
  LayerSpec spec = fake::gpt_oss();
  spec.top_k = 3;
  expect_named(GetParam(), "spec.top_k", common, plan_of(spec));
  Environment environment = fake::environment();
  environment.version = "0.2.0";
  expect_named(GetParam(), "version", common, plan_of(fake::gpt_oss(), environment));
  environment = fake::environment();
  environment.arithmetic_ranking = {"f32", "bf16_dot"};
  expect_named(GetParam(), "arithmetic_ranking[0]", common, plan_of(fake::gpt_oss(), environment));
  expect_named(GetParam(), "deployment.tokens", common, plan_of(fake::gpt_oss(), fake::environment(), 5));
}

TEST_P(Agreements, NameARankThatDoesNotCome) {
  GetParam().run(3, [](Endpoint& end) {
    Agreement agreement(end);
    if (end.rank() == 1) return;
    const auto difference = agreement.compare(plan_of(fake::gpt_oss()), end.now() + milliseconds(200));
    ASSERT_TRUE(difference.has_value());
    EXPECT_EQ(difference->field, "");
    EXPECT_EQ(difference->rank, 1);
  });
}

TEST_P(Agreements, AreNotReachedByARankThatComesTooLate) {
  GetParam().run(3, [](Endpoint& end) {
    Agreement agreement(end);
    if (end.rank() == 1) {
      const FabricTime late = end.now() + milliseconds(500);
      while (end.now() < late) end.wait(late);
    }
    const auto difference = agreement.compare(plan_of(fake::gpt_oss()), end.now() + milliseconds(200));
    ASSERT_TRUE(difference.has_value()) << end.rank();
    EXPECT_EQ(difference->rank, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Agreements, ::testing::ValuesIn(testing::ways()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace motet
