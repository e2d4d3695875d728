// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "plan/fake_catalog.h"
#include "plan/sizes.h"
#include "plan/workspace.h"

namespace motet {
namespace {

std::vector<LayerSpec> layers() {
  LayerSpec wide_top_k = fake::gpt_oss();
  wide_top_k.top_k = 22;
  LayerSpec normed = fake::nemotron(1024);
  normed.latent_norm = true;
  LayerSpec zero = fake::gpt_oss();
  zero.router.zero_experts = 16;
  zero.router.zero_expert_kind = ZeroExpertKind::identity;
  LayerSpec latent_alone = fake::nemotron(1024);
  latent_alone.shared = {};
  return {fake::gpt_oss(), fake::nemotron(0), fake::nemotron(1024), wide_top_k, normed, zero, latent_alone};
}

TEST(L16, EveryPlannedWorkspaceIsProvenDisjoint) {
  for (const LayerSpec& spec : layers())
    for (const std::int64_t tokens : {1, 2, 17, 128, 8192})
      for (const char* backend : {"narrow", "wide", "aligned"})
        for (const Finalize form : {Finalize::builtin, Finalize::unfinalized, Finalize::hook}) {
          Deployment deployment = fake::with_backend(backend, tokens);
          deployment.wishes.finalize = form;
          deployment.memory_limit = std::int64_t{1} << 50;
          const Plan plan = fake::plan(spec, deployment);
          EXPECT_EQ(check_workspace(plan.workspace, plan.stages), std::nullopt);
        }
}

/// The proof by brute force: no byte belongs to two areas that live in one stage.
bool overlaps_somewhere(const std::vector<Area>& areas) {
  for (int stage = 0; stage <= static_cast<int>(StageId::tail); ++stage) {
    std::vector<int> owners(4096, 0);
    for (const Area& area : areas)
      if (static_cast<int>(area.first) <= stage && stage <= static_cast<int>(area.last))
        for (std::int64_t byte = area.offset; byte < area.offset + area.bytes; ++byte)
          if (++owners[static_cast<std::size_t>(byte)] > 1) return true;
  }
  return false;
}

TEST(L16, TheProofAgreesWithByteByByteTruthOnRandomLayouts) {
  std::mt19937 random(20240611);
  int overlapping = 0, apart = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Area> areas;
    for (unsigned i = 0, count = 2 + random() % 5; i < count; ++i) {
      const int first = static_cast<int>(random() % 11),
                last = first + static_cast<int>(random() % static_cast<unsigned>(11 - first));
      areas.push_back({.id = static_cast<AreaId>(i),
                       .offset = static_cast<std::int64_t>(random() % 1024),
                       .bytes = static_cast<std::int64_t>(random() % 400),
                       .first = static_cast<StageId>(first),
                       .last = static_cast<StageId>(last)});
    }
    const bool truth = overlaps_somewhere(areas);
    (truth ? overlapping : apart) += 1;
    // An area of no bytes overlaps nothing.
    std::erase_if(areas, [](const Area& area) { return area.bytes == 0; });
    EXPECT_EQ(disjoint(areas).has_value(), truth) << "round " << round;
  }
  EXPECT_GT(overlapping, 300);
  EXPECT_GT(apart, 300);
}

TEST(L16, PackedRandomAreasAreDisjointAlignedAndNoLargerThanTheirSum) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<Area> areas;
    std::int64_t sum = 0;
    for (unsigned i = 0; i < 17; ++i) {
      const int first = static_cast<int>(random() % 11),
                last = first + static_cast<int>(random() % static_cast<unsigned>(11 - first));
      areas.push_back({.id = static_cast<AreaId>(i),
                       .bytes = 1 + static_cast<std::int64_t>(random() % 5000),
                       .first = static_cast<StageId>(first),
                       .last = static_cast<StageId>(last)});
      sum += round_up(areas.back().bytes, 64);
    }
    const Workspace workspace = pack(areas);
    EXPECT_EQ(check_workspace(workspace, {}), std::nullopt) << "round " << round;
    EXPECT_LE(workspace.bytes, sum);
  }
}

TEST(L16, AShrunkAreaIsFoundByName) {
  const Plan plan = fake::plan(fake::nemotron(1024), fake::with_backend("wide", 64));
  for (std::size_t i = 0; i < plan.workspace.areas.size(); ++i) {
    if (plan.workspace.areas[i].id == AreaId::scratch) continue;  // no tensor lies in it
    Workspace wrong = plan.workspace;
    wrong.areas[i].bytes -= 1;
    const auto breach = check_workspace(wrong, plan.stages);
    ASSERT_TRUE(breach) << name_of(wrong.areas[i].id);
    EXPECT_NE(breach->find(name_of(wrong.areas[i].id)), std::string::npos) << *breach;
    EXPECT_NE(breach->find("is smaller than"), std::string::npos) << *breach;
  }
}

TEST(L16, AnAreaThatDiesTooEarlyIsFoundByName) {
  const Plan plan = fake::plan(fake::nemotron(1024), fake::with_backend("wide", 64));
  Workspace wrong = plan.workspace;
  for (Area& area : wrong.areas)
    if (area.id == AreaId::shared_out) area.last = StageId::combine;
  EXPECT_NE(check_workspace(wrong, plan.stages).value_or("").find("is not live in stage tail"), std::string::npos);
}

TEST(L16, AnAreaOutsideOrMisalignedIsFound) {
  const Plan plan = fake::plan(fake::gpt_oss());
  Workspace cut = plan.workspace;
  cut.bytes -= 64;
  EXPECT_NE(check_workspace(cut, plan.stages).value_or("").find("leaves the workspace"), std::string::npos);
  Workspace shifted = plan.workspace;
  shifted.bytes += 64;
  shifted.areas.back().offset += 1;
  EXPECT_NE(check_workspace(shifted, plan.stages).value_or("").find("is not aligned"), std::string::npos);
}

TEST(L16, AReductionAreaOf8192TokensIsSizedByTheStoredWidth) {
  LayerSpec spec = fake::gpt_oss();
  const Plan plan = fake::plan(spec, fake::with_backend("wide", 8192));
  EXPECT_EQ(plan.area(AreaId::rows)->bytes, std::int64_t{8192} * 4 * 3072 * 4);
  EXPECT_EQ(plan.area(AreaId::permuted)->bytes, std::int64_t{8192} * 4 * 3072 * 2);
  EXPECT_EQ(plan.area(AreaId::act)->bytes, std::int64_t{8192} * 4 * 3072 * 2);
  EXPECT_EQ(plan.area(AreaId::routed)->bytes, std::int64_t{8192} * 2880 * 4) << "the routed sum has the true width";
}

TEST(L16, ALatentLayersAreasHaveTheLatentWidths) {
  const Plan plan = fake::plan(fake::nemotron(1000), fake::with_backend("wide", 10));
  EXPECT_EQ(plan.area(AreaId::latent_x)->bytes, 10 * 1000 * 4);
  EXPECT_EQ(plan.area(AreaId::permuted)->bytes, 10 * 6 * 1024 * 2);
  EXPECT_EQ(plan.area(AreaId::rows)->bytes, 10 * 6 * 1024 * 4);
  EXPECT_EQ(plan.area(AreaId::routed_x)->bytes, 10 * 1024 * 2);
  EXPECT_EQ(plan.area(AreaId::routed_out)->bytes, 10 * 2688 * 4);
  EXPECT_EQ(plan.area(AreaId::x)->bytes, 10 * 2816 * 2);
  EXPECT_EQ(plan.area(AreaId::shared_act)->bytes, 10 * 3840 * 2);
}

TEST(L16, ALayerHasOnlyTheAreasItNeeds) {
  const Plan plan = fake::plan(fake::gpt_oss());
  for (const AreaId id :
       {AreaId::x, AreaId::latent_x, AreaId::routed_x, AreaId::routed_out, AreaId::shared_act, AreaId::shared_out})
    EXPECT_EQ(plan.area(id), nullptr) << name_of(id);
  EXPECT_EQ(plan.memory.workspace, plan.workspace.bytes);
}

TEST(L16, EachThreadsScratchStartsOnACacheLine) {
  Deployment deployment;
  deployment.wishes.threads = 3;
  EXPECT_EQ(fake::plan(fake::gpt_oss(), deployment).area(AreaId::scratch)->bytes, 3 * 1024)
      << "1000 bytes asked for by each of 3 threads";
}

TEST(L12, UnfinalizedRowsAndTheirMapOutliveEveryStage) {
  Deployment deployment = fake::with_backend("wide", 32);
  deployment.wishes.finalize = Finalize::unfinalized;
  const Plan plan = fake::plan(fake::nemotron(0), deployment);
  for (const AreaId id : {AreaId::rows, AreaId::row_of, AreaId::top_k_index, AreaId::top_k_weights})
    EXPECT_EQ(plan.area(id)->last, StageId::tail) << name_of(id);
  EXPECT_EQ(plan.area(AreaId::routed), nullptr);
  EXPECT_EQ(plan.area(AreaId::shared_out), nullptr) << "the caller gets routed rows only";
}

TEST(L17, SizesBeyond32BitsAreExact) {
  LayerSpec spec = fake::gpt_oss();
  Deployment deployment;
  deployment.tokens = 400000000;
  deployment.memory_limit = std::int64_t{1} << 60;
  const Plan plan = fake::plan(spec, deployment);
  EXPECT_EQ(plan.area(AreaId::rows)->bytes, std::int64_t{400000000} * 4 * 2880 * 4);
  EXPECT_EQ(plan.max_rows(), 1600000000);
}

TEST(L17, ProductsSaturateInsteadOfWrapping) {
  const std::int64_t big = std::int64_t{1} << 40;
  EXPECT_EQ(bounded_product({big, big}), kLargestSize + 1);
  EXPECT_EQ(bounded_product({big, big, big, 0}), 0);
  EXPECT_EQ(bounded_product({std::int64_t{1} << 28, std::int64_t{1} << 28}), kLargestSize);
  EXPECT_EQ(bounded_product({INT64_MAX, INT64_MAX, INT64_MAX}), kLargestSize + 1);
}

TEST(L17, ABackendsOversizedPaddingIsARefusal) {
  Catalog catalog = fake::catalog();
  catalog.backends[0].storage = [](const BackendRequest& request) {
    BackendStorage out = fake::storage<1>(request);
    out.rows_width = std::int64_t{1} << 60;
    return out;
  };
  const PlanResult result = plan_with(fake::gpt_oss(), {}, fake::environment(), catalog);
  EXPECT_FALSE(result.plan);
  EXPECT_TRUE(fake::has_code(result.refusals, "too_large"));
}

}  // namespace
}  // namespace motet
