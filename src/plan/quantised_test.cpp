// SPDX-License-Identifier: Apache-2.0
#include "plan/quantised.h"

#include <gtest/gtest.h>

#include "plan/fake_catalog.h"
#include "plan/recipe.h"

namespace motet {
namespace {

/// Multiples of 64, mxfp8 activations with scales in this layout.
template <Layout layout>
BackendStorage quantising(const BackendRequest& request) {
  BackendStorage out = fake::storage<64>(request);
  out.quantised = {.group = 32, .layout = layout, .step = 0x1p-4};
  return out;
}

Plan plan_of(const LayerSpec& spec, BackendStorage (*storage)(const BackendRequest&), std::int64_t tokens) {
  Catalog catalog = fake::catalog();
  catalog.backends = {{"quantising", "mxfp8 activations", false, true, fake::anything, storage}};
  return plan_with(spec, {.tokens = tokens}, fake::environment(), catalog).value();
}

const TensorType* made_by_experts(const Plan& plan, std::string_view name) {
  for (const Stage& stage : plan.stages) {
    if (stage.id != StageId::experts) continue;
    for (const TensorType& tensor : stage.out)
      if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

TEST(L6, FlatScalesAreAPlainCountOfTheirOwnType) {
  const Plan plan = plan_of(fake::gpt_oss(), quantising<Layout::flat_scales>, 8);  // 32 rows, 2880 = 90 groups
  const TensorType* scales = made_by_experts(plan, "permuted_scales");
  ASSERT_NE(scales, nullptr);
  EXPECT_EQ(scales->layout, Layout::flat_scales);
  EXPECT_EQ(scales->dtype, DType::f8_e8m0);
  EXPECT_EQ(scales->valid, (std::vector<std::int64_t>{32 * 90}));
  EXPECT_EQ(scales->stored, scales->valid);
  EXPECT_EQ(plan.area(AreaId::permuted_scales)->bytes, 32 * 90);
  EXPECT_EQ(plan.area(AreaId::permuted_codes)->bytes, 32 * 2880);
  EXPECT_EQ(made_by_experts(plan, "linear_scales"), nullptr) << "linear scales are the same bytes";
  EXPECT_EQ(plan.area(AreaId::linear_scales), nullptr);
}

TEST(L6, SwizzledScalesHaveATileRunOfTheirOwnPerExpert) {
  const Plan plan = plan_of(fake::nemotron(0), quantising<Layout::swizzled_128x4>, 50);  // 300 rows on 128 experts
  const TensorType* scales = made_by_experts(plan, "act_scales");
  ASSERT_NE(scales, nullptr);
  EXPECT_EQ(scales->layout, Layout::swizzled_128x4);
  EXPECT_EQ(scales->rows, RowRule::by_index);
  EXPECT_EQ(scales->valid, (std::vector<std::int64_t>{300, 58}));
  EXPECT_EQ(scales->stored, (std::vector<std::int64_t>{(128 + 1) * 128, 60})) << "a tile per expert, and one for 128 rows more";
  EXPECT_EQ(plan.area(AreaId::act_scales)->bytes, 129 * 128 * 60);
  const TensorType* linear = made_by_experts(plan, "linear_scales");
  ASSERT_NE(linear, nullptr);
  EXPECT_EQ(linear->layout, Layout::linear_scales);
  EXPECT_EQ(linear->stored, (std::vector<std::int64_t>{300, 84})) << "2688 / 32, more than 1856 / 32";
}

TEST(L16, QuantisedAreasAreExact) {
  for (const auto storage : {quantising<Layout::flat_scales>, quantising<Layout::swizzled_128x4>}) {
    const Plan plan = plan_of(fake::nemotron(1024), storage, 17);
    for (const Stage& stage : plan.stages) {
      for (const TensorType& tensor : stage.out) {
        for (const Area& area : plan.workspace.areas) {
          if (name_of(area.id) != tensor.name || stage.id != StageId::experts) continue;
          std::int64_t bytes = bits_of(tensor.dtype) / 8;
          for (const std::int64_t extent : tensor.stored) bytes *= extent;
          EXPECT_EQ(area.bytes, bytes) << tensor.name;
        }
      }
    }
  }
}

TEST(PlanText, ShowsTheLayoutOfScales) {
  const std::string text = plan_of(fake::gpt_oss(), quantising<Layout::swizzled_128x4>, 1).to_text();
  EXPECT_NE(text.find("act_scales:F8_E8M0/swizzled_128x4[4->512,90->92]"), std::string::npos) << text;
  EXPECT_NE(text.find("linear_scales:F8_E8M0/linear_scales[4,90]"), std::string::npos) << text;
}

TEST(Recipe, QuantisedActivationsPromiseAFunctionOfTheirStep) {
  EXPECT_DOUBLE_EQ(plan_of(fake::gpt_oss(), quantising<Layout::flat_scales>, 1).recipe.error_bound, quantised_error_bound(0x1p-4));
  EXPECT_DOUBLE_EQ(quantised_error_bound(0x1p-4), 3 * quantised_error_bound(0x1p-4 / 3));
}

}  // namespace
}  // namespace motet
