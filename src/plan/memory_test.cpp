// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plan/fake_catalog.h"
#include "plan/sizes.h"

namespace motet {
namespace {

TEST(L16, MappedBytesOfGptOss20bAreItsCodesScalesBiasesAndRouter) {
  const Plan plan = fake::plan(fake::gpt_oss());
  const std::int64_t matrix = 2880 * (2880 / 32) * (16 + 1);
  const std::int64_t biases = 3 * 2880 * 4;
  EXPECT_EQ(plan.memory.mapped, 32 * (3 * matrix + biases) + 32 * 2880 * 2 + 32 * 4) << "an upper bound: vectors as F32";
  EXPECT_EQ(plan.estimates.weight_bytes_per_token, 4 * (3 * matrix + biases / 2) + 32 * 2880 * 2 + 32 * 2) << "vectors as BF16";
  EXPECT_EQ(plan.estimates.parameters_total, 32 * 3 * 2880 * 2880 + 32 * 2880) << "neither biases nor scales";
  EXPECT_EQ(plan.estimates.weight_bytes_per_token, 53130304) << "as the checkpoint's own headers count";
  EXPECT_EQ(plan.estimates.parameters_total, 796354560) << "as the checkpoint's own headers count";
  EXPECT_EQ(plan.memory.anonymous, plan.workspace.bytes + 4096);
  EXPECT_EQ(plan.memory.peak, plan.memory.anonymous + plan.memory.mapped);
  EXPECT_EQ(plan.memory.fit, Fit::fits);
}

TEST(L16, MappedBytesOfALatentLayerWithoutGateCountEveryMatrixOnce) {
  const Plan plan = fake::plan(fake::nemotron(1024));
  const std::int64_t routed = std::int64_t{2} * 1024 * 1856, shared = 2 * 2688 * 3712, latent = 2 * 1024 * 2688,
                     router = 128 * 2688;
  EXPECT_EQ(plan.memory.mapped, 2 * (128 * routed + shared + latent + router) + 128 * 4) << "bf16, and an fp32 selection bias";
  EXPECT_EQ(plan.estimates.parameters_active, 6 * routed + shared + latent + router);
}

TEST(L16, ARaggedFp8BlockHasAScaleOfItsOwn) {
  const Catalog catalog = fake::catalog();
  EXPECT_EQ(matrix_size(catalog, fake::projection("fp8_block"), 144, 208).bytes, 144 * 208 + 2 * 2 * 4);
}

TEST(L16, OneRankOfTwoMapsItsSlice) {
  Deployment deployment;
  deployment.tp = 2;
  const std::int64_t whole = fake::plan(fake::gpt_oss()).memory.mapped,
                     half = fake::plan(fake::gpt_oss(), deployment).memory.mapped;
  EXPECT_LT(half, whole * 51 / 100);
  EXPECT_GT(half, whole * 49 / 100);
}

TEST(L16, TooManyTokensForTheLimitNamesTheMostThatFit) {
  Deployment deployment;
  deployment.tokens = 8192;
  const MemoryPlan large = fake::plan(fake::gpt_oss(), deployment).memory;
  deployment.memory_limit = large.peak - 1;
  const PlanResult result = fake::try_plan(fake::gpt_oss(), deployment);
  ASSERT_TRUE(result.plan) << "a plan that does not fit can still be printed";
  EXPECT_EQ(result.plan->memory.fit, Fit::would_fit);
  const std::string advice = result.plan->memory.advice;
  ASSERT_TRUE(advice.starts_with("would with --chunk-tokens ")) << advice;
  const std::int64_t most = std::stoll(advice.substr(26));
  deployment.chunk_tokens = most;
  EXPECT_EQ(fake::try_plan(fake::gpt_oss(), deployment).plan->memory.fit, Fit::fits);
  deployment.chunk_tokens = most + 1;
  EXPECT_EQ(fake::try_plan(fake::gpt_oss(), deployment).plan->memory.fit, Fit::would_fit);
  try {
    (void)result.value();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::would_not_fit);
    EXPECT_NE(std::string(error.what()).find(advice), std::string::npos);
  }
}

TEST(L16, NoAdviceNamesWhatCannotRun) {
  Deployment deployment;
  deployment.memory_limit =
      fake::plan(fake::gpt_oss()).memory.mapped * 6 / 10;  // two ranks would fit, but they cannot exchange yet
  const PlanResult result = fake::try_plan(fake::gpt_oss(), deployment);
  EXPECT_EQ(result.plan->memory.fit, Fit::does_not_fit);
  EXPECT_EQ(result.plan->memory.advice.find("--tp"), std::string::npos) << result.plan->memory.advice;
  EXPECT_NE(result.plan->memory.advice.find("not even one token"), std::string::npos) << result.plan->memory.advice;
  EXPECT_THROW((void)result.value(), Error);
}

TEST(L16, AnUnknownAmountOfMemoryIsSaid) {
  Environment environment = fake::environment();
  environment.memory_bytes = 0;
  const PlanResult result = plan_with(fake::gpt_oss(), {}, environment, fake::catalog());
  EXPECT_EQ(result.value().memory.fit, Fit::fits);
  EXPECT_NE(result.value().memory.advice.find("unknown"), std::string::npos);
}

}  // namespace
}  // namespace motet
