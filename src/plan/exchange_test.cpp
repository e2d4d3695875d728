// SPDX-License-Identifier: Apache-2.0
#include "plan/exchange.h"

#include <gtest/gtest.h>

#include "plan/fake_catalog.h"
#include "plan/sizes.h"

namespace motet {
namespace {

Plan on_ranks(const LayerSpec& spec, const char* strategy, std::int64_t tp, std::int64_t ep, std::int64_t tokens) {
  Deployment deployment = fake::with_backend("wide", tokens);
  deployment.tp = tp;
  deployment.ep = ep;
  deployment.wishes.strategy = strategy;
  if (deployment.wishes.strategy == "replicated") deployment.placement = TokenPlacement::replicated;
  return fake::plan(spec, deployment);
}

TEST(ExchangePlan, RowsFollowFromWhatARowStandsFor) {
  const LayerSpec spec = fake::gpt_oss();  // top_k 4, hidden 2880
  const ExchangePlan by_rank = on_ranks(spec, "by_rank", 1, 8, 10).exchange;
  EXPECT_EQ(by_rank.row_bytes, 2880 * 2);
  EXPECT_EQ(by_rank.choices, 4);
  EXPECT_EQ(by_rank.rows_to_rank, 10);
  EXPECT_EQ(by_rank.rows, 80);
  EXPECT_EQ(by_rank.width, 2880);
  const ExchangePlan by_choice = on_ranks(spec, "by_choice", 1, 8, 10).exchange;
  EXPECT_EQ(by_choice.choices, 1);
  EXPECT_EQ(by_choice.rows_to_rank, 40);
  EXPECT_EQ(by_choice.rows, 320);
  const ExchangePlan replicated = on_ranks(spec, "replicated", 1, 8, 10).exchange;
  EXPECT_EQ(replicated.rows, 0);
  EXPECT_EQ(replicated.dispatch_bytes, 0);
  EXPECT_EQ(replicated.rows_to_rank, 10);
  EXPECT_EQ(on_ranks(spec, "", 1, 1, 10).exchange, ExchangePlan{});
}

TEST(ExchangePlan, MessagesAreAHeaderAndRunsOfWholeCacheLines) {
  const ExchangePlan plan = on_ranks(fake::gpt_oss(), "by_rank", 1, 2, 3).exchange;
  // Header; 3 choices; 3 x 4 slots; 3 x 4 weights; 3 rows of 5760 bytes = 270 lines.
  EXPECT_EQ(plan.dispatch_bytes, 64 + 64 + 64 + 64 + 3 * 5760);
  EXPECT_EQ(plan.combine_bytes, 64 + 3 * 2880 * 2);
  EXPECT_EQ(plan.mailboxes, 2 * 2 * (17536 + 128 + 17408 + 128)) << "rounded to 128, a state of 128 each, from 2 ranks for 2 steps";
  EXPECT_EQ(plan.handles, 4 * 3 * 2 + 8 * 6 * 4);
}

TEST(ExchangePlan, AFabricWithBuffersOnBothEndsTakesThemOnBoth) {
  Deployment deployment = fake::with_backend("wide", 3);
  deployment.ep = 2;
  deployment.fabric = "both_ends";
  EXPECT_EQ(fake::plan(fake::gpt_oss(), deployment).exchange.mailboxes, 2 * 3 * (17536 + 128 + 17408 + 128));
  deployment.fabric = "carrier_pigeons";
  EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "fabric_unknown"));
}

TEST(ExchangePlan, ALatentLayerSendsFp32RowsOfItsLatentWidth) {
  const ExchangePlan plan = on_ranks(fake::nemotron(1024), "by_rank", 1, 2, 3).exchange;
  EXPECT_EQ(plan.row_bytes, 4096);
  EXPECT_EQ(plan.width, 1024);
  EXPECT_EQ(on_ranks(fake::nemotron(1024), "replicated", 2, 1, 3).exchange.width, 2688)
      << "the partial shared expert is in the sum";
}

TEST(ExchangePlan, ARankGetsNoMoreRowsThanItsExpertsTimesWhatComes) {
  LayerSpec spec = fake::gpt_oss();
  EXPECT_EQ(on_ranks(spec, "by_rank", 1, 2, 10).max_rows(), 2 * 10 * 4);
  EXPECT_EQ(on_ranks(spec, "by_rank", 1, 16, 10).max_rows(), 16 * 10 * 2) << "two experts here";
  EXPECT_EQ(on_ranks(spec, "by_choice", 1, 16, 10).max_rows(), 16 * 40);
  EXPECT_EQ(on_ranks(spec, "replicated", 1, 16, 10).max_rows(), 10 * 2);
  EXPECT_EQ(on_ranks(spec, "", 1, 1, 10).max_rows(), 40);
}

TEST(L16, MemoryCountsTheExchange) {
  const Plan plan = on_ranks(fake::gpt_oss(), "by_rank", 1, 4, 100);
  EXPECT_EQ(plan.memory.exchange, plan.exchange.mailboxes + plan.exchange.handles);
  EXPECT_EQ(plan.memory.anonymous, plan.memory.workspace + plan.memory.exchange + plan.memory.prepared);
}

TEST(L17, SizesThatDoNotFitAreRefused) {
  Deployment deployment = fake::with_backend("wide", std::int64_t{1} << 26);
  deployment.ep = 64;
  EXPECT_TRUE(fake::has_code(fake::try_plan(fake::gpt_oss(), deployment).refusals, "too_many_rows"));
  const StrategyTraits strategy{.name = "s", .summary = "", .unit = RowUnit::token_expert};
  const std::int64_t part = std::int64_t{1} << 40;
  const ExchangeSizes sizes = exchange_sizes(strategy, {.ranks = 4096,
                                                        .holders = 4096,
                                                        .tokens = std::int64_t{1} << 40,
                                                        .top_k = std::int64_t{1} << 20,
                                                        .width = std::int64_t{1} << 40,
                                                        .part_bytes = {&part, 1}});
  for (const std::int64_t size : {sizes.dispatch_bytes, sizes.combine_bytes, sizes.mailbox_bytes, sizes.handle_bytes})
    EXPECT_GT(size, kLargestSize) << "saturates, never wraps";
}

}  // namespace
}  // namespace motet
