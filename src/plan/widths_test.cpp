// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plan/fake_catalog.h"

namespace motet {
namespace {

TEST(L1, StoredHiddenIsTheBackendsAnswer) {
  const struct {
    const char* backend;
    std::int64_t stored;
  } cases[] = {{"narrow", 2880}, {"wide", 3072}, {"aligned", 2944}};
  for (const auto& one : cases) {
    const Plan plan = fake::plan(fake::gpt_oss(), fake::with_backend(one.backend, 16));
    const Width* hidden = plan.width(Axis::hidden);
    ASSERT_NE(hidden, nullptr);
    EXPECT_EQ(hidden->valid, 2880);
    EXPECT_EQ(hidden->stored, one.stored);
    EXPECT_EQ(hidden->owner, one.stored == 2880 ? "model" : one.backend);
  }
}

TEST(L1, EveryAxisOfTheLayerHasOneOwner) {
  for (const std::int64_t latent : {0, 1024}) {
    const Plan plan = fake::plan(fake::nemotron(latent), fake::with_backend("wide"));
    for (const Width& width : plan.widths) {
      EXPECT_FALSE(width.owner.empty()) << name_of(width.axis);
      EXPECT_EQ(std::count_if(plan.widths.begin(), plan.widths.end(), [&](const Width& other) { return other.axis == width.axis; }),
                1);
    }
    EXPECT_EQ(plan.width(Axis::latent) != nullptr, latent > 0);
    EXPECT_EQ(plan.width(Axis::gate), nullptr) << "relu2 has no gate";
    EXPECT_EQ(plan.stored(Axis::gate), 0);
  }
}

TEST(L1, Hidden2688IsStoredAs2816WhileTheSharedAddKeeps2688) {
  const Plan plan = fake::plan(fake::nemotron(0), fake::with_backend("wide"));
  EXPECT_EQ(plan.stored(Axis::hidden), 2816);
  EXPECT_EQ(plan.stored(Axis::down_out), 2816);
  const auto add =
      std::find_if(plan.tail.begin(), plan.tail.end(), [](const TailStep& step) { return step.op == TailOp::add_shared; });
  ASSERT_NE(add, plan.tail.end());
  EXPECT_EQ(add->width_in, 2688);
  EXPECT_EQ(plan.area(AreaId::shared_out)->bytes, 2688 * 4);
}

TEST(L4, GateAndUpHalvesArePaddedApart) {
  for (const std::int64_t intermediate : {720, 704, 1856, 2880}) {
    LayerSpec spec = fake::gpt_oss();
    spec.gate_up = spec.down = fake::projection("bf16");
    spec.intermediate = intermediate;
    const Plan plan = fake::plan(spec, fake::with_backend("wide"));
    const std::int64_t padded = round_up(intermediate, 256);
    for (const Axis half : {Axis::gate, Axis::up}) {
      EXPECT_EQ(plan.width(half)->valid, intermediate);
      EXPECT_EQ(plan.width(half)->stored, padded) << "never half of round_up(2 * " << intermediate << ")";
    }
    EXPECT_EQ(plan.stored(Axis::down_in), padded);
  }
}

TEST(L4, ScaleRowsAndColumnsCountBlocksRaggedOnesIncluded) {
  LayerSpec spec = fake::gpt_oss();
  spec.gate_up = spec.down = fake::projection("fp8_block");
  spec.intermediate = 720;
  const Plan plan = fake::plan(spec);
  EXPECT_EQ(plan.width(Axis::scale_rows)->valid, 6);   // 720 = 5 * 128 + 80
  EXPECT_EQ(plan.width(Axis::scale_cols)->valid, 23);  // 2880 = 22 * 128 + 64
}

TEST(Widths, ABackendThatStoresLessThanIsValidIsABug) {
  Catalog catalog = fake::catalog();
  catalog.backends[0].storage = [](const BackendRequest& request) {
    BackendStorage out = fake::storage<1>(request);
    out.hidden -= 1;
    return out;
  };
  EXPECT_DEATH((void)plan_with(fake::gpt_oss(), {}, fake::environment(), catalog), "stores 2879 of 2880 valid on hidden");
}

}  // namespace
}  // namespace motet
