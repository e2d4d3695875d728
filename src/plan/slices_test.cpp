// SPDX-License-Identifier: Apache-2.0
#include "plan/slices.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/fake_catalog.h"

namespace motet {
namespace {

std::vector<std::int64_t> valid_of(const Plan& plan) {
  std::vector<std::int64_t> valid;
  for (const RankSlice& slice : plan.ranks) valid.push_back(slice.intermediate_valid);
  return valid;
}

Plan plan_tp(const LayerSpec& spec, std::int64_t tp, std::int64_t ep = 1, const char* backend = "narrow",
             TokenPlacement placement = TokenPlacement::sharded) {
  Deployment deployment = fake::with_backend(backend);
  deployment.tp = tp;
  deployment.ep = ep;
  deployment.placement = placement;
  return fake::plan(spec, deployment);
}

TEST(Slices, GptOss2880OverFourRanksIsWholeUnitsOf32LargerFirst) {
  const Plan plan = plan_tp(fake::gpt_oss(), 4);
  EXPECT_EQ(valid_of(plan), (std::vector<std::int64_t>{736, 736, 704, 704}));
  EXPECT_EQ(plan.ranks[2].intermediate_begin, 1472);
  for (const RankSlice& slice : plan.ranks) EXPECT_EQ(slice.reason, "90 units of 32: 23 + 23 + 22 + 22");
  EXPECT_EQ(plan.width(Axis::gate)->valid, 736) << "one plan: the widths are those of the largest slice";
  EXPECT_FALSE(plan.choices.empty());
}

TEST(Slices, EveryRankStoresTheLargestSlicePaddedPerHalf) {
  const Plan plan = plan_tp(fake::gpt_oss(), 4, 1, "wide");
  for (const RankSlice& slice : plan.ranks) EXPECT_EQ(slice.intermediate_stored, 768);
  EXPECT_EQ(plan.stored(Axis::gate), 768);
  EXPECT_EQ(plan.stored(Axis::up), 768);
}

TEST(Slices, UnitsFollowTheFormat) {
  const struct {
    const char* format;
    std::int64_t unit;
  } cases[] = {{"bf16", 1}, {"mxfp4", 32}, {"nvfp4", 16}, {"fp8_block", 128}};
  for (const auto& one : cases)
    EXPECT_EQ(slice_unit(fake::catalog(), fake::projection(one.format), fake::projection(one.format)), one.unit);
  EXPECT_EQ(slice_unit(fake::catalog(), fake::projection("fp8_block"), fake::projection("mxfp4")), 128);
}

TEST(Slices, AScaleBlockLargerThanAnythingIsOneUnit) {
  ProjectionSpec rows = fake::projection("fp8_block"), cols = rows;
  rows.block_rows = std::numeric_limits<std::int64_t>::max();
  cols.block_cols = std::numeric_limits<std::int64_t>::max() - 1;
  EXPECT_GT(slice_unit(fake::catalog(), rows, cols), std::int64_t{1} << 55) << "saturates, never wraps";
  rows.block_rows = 0;
  cols.block_cols = 0;
  EXPECT_EQ(slice_unit(fake::catalog(), rows, cols), 1) << "one scale for all is cut nowhere";
}

TEST(Slices, Intermediate704OverTwoRanksOfFp8BlocksIsNotHalved) {
  LayerSpec spec = fake::gpt_oss();
  spec.gate_up = spec.down = fake::projection("fp8_block");
  spec.intermediate = 704;  // 5.5 blocks
  const Plan plan = plan_tp(spec, 2);
  EXPECT_EQ(valid_of(plan), (std::vector<std::int64_t>{384, 320}));
  EXPECT_EQ(plan.ranks[0].reason, "6 units of 128: 3 + 3");
  spec.gate_up = spec.down = fake::projection("bf16");
  EXPECT_EQ(valid_of(plan_tp(spec, 2)), (std::vector<std::int64_t>{352, 352}));
}

TEST(Slices, TheyCoverEveryElementOnce) {
  for (const char* format : {"bf16", "fp8_block", "nvfp4"})
    for (const std::int64_t intermediate : {704, 720, 1856, 2880})
      for (std::int64_t tp = 1; tp <= 5; ++tp)
        for (const std::int64_t ep : {1, 3, 7}) {
          LayerSpec spec = fake::nemotron(0);
          spec.gate_up = spec.down = spec.shared.gate_up = spec.shared.down = fake::projection(format);
          spec.intermediate = intermediate;
          Deployment deployment = fake::with_backend("wide");
          deployment.tp = tp, deployment.ep = ep;
          deployment.placement = TokenPlacement::replicated;
          const Slices slices = make_slices(spec, deployment, fake::catalog());
          ASSERT_EQ(static_cast<std::int64_t>(slices.ranks.size()), tp * ep);
          std::int64_t work = 0, shared = 0;
          for (const RankSlice& slice : slices.ranks) {
            work += slice.expert_count * slice.intermediate_valid;
            shared += slice.shared_valid;
            if (slice.tp_rank > 0) {
              const RankSlice& before = slices.ranks[static_cast<std::size_t>(slice.rank - 1)];
              EXPECT_EQ(slice.intermediate_begin, before.intermediate_begin + before.intermediate_valid);
              EXPECT_LE(slice.intermediate_valid, before.intermediate_valid);
            }
            EXPECT_LE(slice.intermediate_valid, slices.share.intermediate);
            EXPECT_LE(slice.expert_count, slices.share.experts);
          }
          EXPECT_EQ(work, spec.experts * intermediate);
          EXPECT_EQ(shared, spec.shared.intermediate);
        }
}

TEST(Slices, ExpertsOverRanksWithTheRemainderOnTheLowerOnes) {
  LayerSpec spec = fake::gpt_oss();
  spec.experts = 10;
  const Plan plan = plan_tp(spec, 1, 4);
  std::vector<std::int64_t> counts, begins;
  for (const RankSlice& slice : plan.ranks) counts.push_back(slice.expert_count), begins.push_back(slice.expert_begin);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 3, 6, 8}));
  EXPECT_EQ(plan.area(AreaId::counts)->bytes, 4 * 8) << "three slots and the total";
}

TEST(Slices, MoreRanksThanExpertsLeavesEmptyRanks) {
  LayerSpec spec = fake::gpt_oss();
  spec.experts = 4;
  const Plan plan = plan_tp(spec, 1, 6);
  EXPECT_EQ(plan.ranks[3].expert_count, 1);
  EXPECT_EQ(plan.ranks[4].expert_count, 0);
  EXPECT_EQ(plan.ranks[5].expert_count, 0);
}

TEST(Slices, ATpRankForWhichNoUnitIsLeftHasNoExperts) {
  LayerSpec spec = fake::gpt_oss();
  spec.intermediate = 64;
  const Plan plan = plan_tp(spec, 3, 2);
  EXPECT_EQ(valid_of(plan), (std::vector<std::int64_t>{32, 32, 0, 32, 32, 0}));
  EXPECT_EQ(plan.ranks[2].expert_count, 0);
  EXPECT_EQ(plan.ranks[5].expert_count, 0);
  EXPECT_EQ(plan.ranks[4].expert_count, 16);
}

TEST(Slices, DownBiasIsAddedByExactlyOneTpRankOfEachExpert) {
  const Plan plan = plan_tp(fake::gpt_oss(), 4, 2);
  for (std::int64_t ep = 0; ep < 2; ++ep)
    EXPECT_EQ(std::count_if(plan.ranks.begin(), plan.ranks.end(),
                            [&](const RankSlice& slice) { return slice.ep_rank == ep && slice.down_bias; }),
              1);
}

TEST(Slices, TheSharedExpertOfReplicatedTokensIsSlicedByItsOwnUnitUnlessANormForbidsIt) {
  LayerSpec spec = fake::nemotron(1024);
  spec.shared.gate_up = spec.shared.down = fake::projection("fp8_block");
  spec.shared.down.bias = true;
  for (const auto& [tp, ep] : {std::pair<std::int64_t, std::int64_t>{2, 1}, {1, 2}}) {
    const Plan sliced = plan_tp(spec, tp, ep, "wide", TokenPlacement::replicated);
    EXPECT_EQ(sliced.ranks[0].shared_valid, 15 * 128);
    EXPECT_EQ(sliced.ranks[1].shared_valid, 14 * 128);
    EXPECT_TRUE(sliced.ranks[0].shared_bias);
    EXPECT_FALSE(sliced.ranks[1].shared_bias) << "the sum over ranks has it once";
  }
  const Plan sharded = plan_tp(spec, 2, 1, "wide");
  spec.latent_norm = true;
  const Plan normed = plan_tp(spec, 2, 1, "wide", TokenPlacement::replicated);
  for (const Plan* whole : {&sharded, &normed}) {
    for (const RankSlice& slice : whole->ranks) EXPECT_EQ(slice.shared_valid, 3712);
    EXPECT_TRUE(whole->ranks[1].shared_bias);
    EXPECT_NE(whole->ranks[0].reason.find("shared expert whole on every rank"), std::string::npos);
  }
}

TEST(Slices, TheSpecOfARankIsItsPart) {
  LayerSpec spec = fake::gpt_oss();
  const Plan plan = plan_tp(spec, 2, 3);
  const LayerSpec mine = spec_of_rank(spec, plan.ranks[3]);
  EXPECT_EQ(mine.experts, 11);
  EXPECT_EQ(mine.intermediate, 1440);
  EXPECT_FALSE(mine.down.bias) << "the other tp rank adds it";
  EXPECT_TRUE(mine.gate_up.bias);
  EXPECT_TRUE(spec_of_rank(spec, plan.ranks[2]).down.bias);
}

}  // namespace
}  // namespace motet
