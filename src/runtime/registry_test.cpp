// SPDX-License-Identifier: Apache-2.0
#include "motet/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "motet/error.h"
#include "motet/plan.h"

namespace motet {
namespace {

bool has(const std::vector<ListEntry>& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&](const ListEntry& entry) { return entry.name == name; });
}

TEST(Registry, ListsHaveDistinctNamesAndOneLineEach) {
  for (const auto& list : {formats(), families(), backends(), targets(), strategies(), fabrics(), arithmetics(), routers()}) {
    ASSERT_FALSE(list.empty());
    std::set<std::string> names;
    for (const ListEntry& entry : list) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      EXPECT_FALSE(entry.about.empty()) << entry.name;
      EXPECT_EQ(entry.about.find('\n'), std::string::npos) << entry.name;
    }
  }
}

TEST(Registry, StrategiesAndFabricsAreInSelectionOrder) {
  EXPECT_EQ(strategies()[0].name, "alltoall");
  EXPECT_EQ(fabrics()[0].name, "threads");
  EXPECT_TRUE(has(strategies(), "allreduce"));
}

TEST(Shapes, EveryShapeCanBePlannedOnOneRank) {
  Environment environment = Environment::probe();
  environment.memory_bytes = 0;  // compare nothing
  for (const NamedShape& shape : shapes()) {
    const PlanResult result = plan(shape.spec, {.tokens = 4}, environment);
    EXPECT_TRUE(result.plan.has_value()) << shape.name << ": "
                                         << (result.refusals.empty()
                                                 ? ""
                                                 : result.refusals.front().rule + ", given " + result.refusals.front().given);
    EXPECT_TRUE(has(families(), shape.spec.family)) << shape.name;
    EXPECT_FALSE(shape.source.empty()) << shape.name;
  }
}

const LayerSpec& shape(const std::string& name) {
  for (const NamedShape& entry : shapes())
    if (entry.name == name) return entry.spec;
  throw std::out_of_range(name);
}

TEST(Shapes, HoldPublishedNumbers) {
  EXPECT_EQ(shape("gpt-oss-20b").hidden, 2880);
  EXPECT_EQ(shape("gpt-oss-20b").gate_up.format, "mxfp4");
  EXPECT_TRUE(shape("gpt-oss-20b").gate_up.bias);
  EXPECT_EQ(shape("gpt-oss-20b").gate_up_order, GateUpOrder::interleaved);
  EXPECT_EQ(shape("nemotron-3-super").latent, 1024);
  EXPECT_EQ(shape("nemotron-3-super").dispatch_width(), 1024);
  EXPECT_FALSE(shape("nemotron-3-super").activation.gated);
  EXPECT_EQ(shape("deepseek-v3").router.groups, 8);
  EXPECT_EQ(shape("llama-4-scout").router.weight_site, WeightSite::input);
  EXPECT_TRUE(shape("qwen1.5-moe").shared.gate);
  EXPECT_FALSE(shape("granite-4-h-small").router.logit_bias);
}

TEST(WithFormat, ChangesTheRoutedExpertsOnly) {
  const LayerSpec spec = with_format(shape("deepseek-v3"), "mxfp4");
  EXPECT_EQ(spec.gate_up.format, "mxfp4");
  EXPECT_EQ(spec.down.block_cols, 32);
  EXPECT_EQ(spec.shared.down.format, "fp8_block");
}

TEST(WithFormat, RefusesUnknownFormats) {
  try {
    with_format(shape("olmoe"), "mxfp5");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("mxfp4"), std::string::npos) << error.what();
  }
}

TEST(Registry, ListsEveryArithmeticThatAPlanMayName) {
  std::vector<std::string> names;
  for (const ListEntry& entry : arithmetics()) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"f32", "bf16_dot", "bf16_tile", "bf16x2_tile", "int16_dot", "int8_dot", "double"}));
}

}  // namespace
}  // namespace motet
