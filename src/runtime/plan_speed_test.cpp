// SPDX-License-Identifier: Apache-2.0
// Planning is cheap enough to be done again at every creation.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "motet/plan.h"
#include "motet/registry.h"

namespace motet {
namespace {

TEST(Plan, OfGptOss20bTakesLessThanAMillisecond) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers slow planning down";
#elif !defined(NDEBUG)
  GTEST_SKIP() << "a debug build is not optimised";
#endif
  const std::vector<NamedShape> all = shapes();
  const auto shape = std::find_if(all.begin(), all.end(), [](const NamedShape& each) { return each.name == "gpt-oss-20b"; });
  ASSERT_NE(shape, all.end());
  const Environment environment = Environment::probe();
  std::vector<double> seconds;
  for (int i = 0; i < 50; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const PlanResult result = plan(shape->spec, Deployment{.tokens = 8192}, environment);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    ASSERT_TRUE(result.plan);
  }
  std::nth_element(seconds.begin(), seconds.begin() + 25, seconds.end());
  EXPECT_LT(seconds[25], 1e-3);
  RecordProperty("median_microseconds", std::to_string(seconds[25] * 1e6));
}

}  // namespace
}  // namespace motet
