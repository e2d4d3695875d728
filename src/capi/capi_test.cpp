// SPDX-License-Identifier: Apache-2.0
// Misuse of the C ABI: each case is a status and a sentence, never a crash.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "motet/motet.h"

namespace {

const char kGolden[] = MOTET_SOURCE_DIR "/tests/golden/gpt_oss_mxfp4";

class CInterface : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(motet_checkpoint_open(kGolden, &checkpoint_), MOTET_OK) << motet_last_error(); }
  void TearDown() override { motet_checkpoint_release(checkpoint_); }
  motet_status plan(const motet_deployment& deployment) {
    motet_plan* made = nullptr;
    const motet_status status = motet_plan_create(checkpoint_, 1, &deployment, &made);
    EXPECT_EQ(status == MOTET_OK, made != nullptr);
    motet_plan_release(made);
    return status;
  }
  static bool said(const char* words) { return std::string(motet_last_error()).find(words) != std::string::npos; }
  motet_checkpoint* checkpoint_ = nullptr;
};

TEST_F(CInterface, RefusesNullByName) {
  EXPECT_EQ(motet_checkpoint_open(nullptr, &checkpoint_), MOTET_INVALID_ARGUMENT);
  EXPECT_EQ(motet_checkpoint_open(kGolden, nullptr), MOTET_INVALID_ARGUMENT);
  motet_plan* made = nullptr;
  EXPECT_EQ(motet_plan_create(checkpoint_, 1, nullptr, &made), MOTET_INVALID_ARGUMENT);
  EXPECT_TRUE(said("motet_deployment must not be NULL")) << motet_last_error();
  EXPECT_EQ(motet_layer_forward(nullptr, nullptr), MOTET_INVALID_ARGUMENT);
  motet_checkpoint_release(nullptr);
  motet_plan_release(nullptr);
  motet_layer_release(nullptr);
  EXPECT_EQ(motet_checkpoint_layers(nullptr), 0);
  EXPECT_STREQ(motet_plan_json(nullptr), "");
}

TEST(L20, StructsStartWithTheirSize) {
  EXPECT_EQ(offsetof(motet_deployment, size), 0U);
  EXPECT_EQ(offsetof(motet_forward, size), 0U);
  EXPECT_EQ(offsetof(motet_layer_info, size), 0U);
  EXPECT_EQ(offsetof(motet_output_type, size), 0U);
}

TEST_F(CInterface, RefusesStructsSmallerThanTheFirstVersions) {
  motet_deployment deployment = MOTET_DEPLOYMENT_INIT;
  deployment.size = offsetof(motet_deployment, backend);
  EXPECT_EQ(plan(deployment), MOTET_INVALID_ARGUMENT);
  EXPECT_TRUE(said("motet_deployment.size must be sizeof the struct")) << motet_last_error();
}

TEST_F(CInterface, TakesTheStructOfANewerCallerUnlessItAsksForTheUnknown) {
  struct Newer { motet_deployment known; std::int64_t unknown; } newer = {MOTET_DEPLOYMENT_INIT, 0};
  newer.known.size = sizeof newer;
  EXPECT_EQ(plan(newer.known), MOTET_OK) << motet_last_error();
  newer.unknown = 1;
  EXPECT_EQ(plan(newer.known), MOTET_NOT_SUPPORTED);
  EXPECT_TRUE(said("members that this library does not know")) << motet_last_error();
}

TEST_F(CInterface, RefusesSizesThatCannotBe) {
  motet_deployment deployment = MOTET_DEPLOYMENT_INIT;
  for (const std::size_t size : {std::size_t{0}, std::size_t{4}, std::size_t{1} << 40}) {
    deployment.size = size;
    EXPECT_EQ(plan(deployment), MOTET_INVALID_ARGUMENT) << size;
  }
}

TEST_F(CInterface, RefusesEnumeratorsAndFlagsOutOfRange) {
  const auto changed = [](auto member, auto value) {
    motet_deployment deployment = MOTET_DEPLOYMENT_INIT;
    deployment.*member = value;
    return deployment;
  };
  EXPECT_EQ(plan(changed(&motet_deployment::input, 7)), MOTET_WRONG_DTYPE);
  EXPECT_EQ(plan(changed(&motet_deployment::arithmetic, 9)), MOTET_INVALID_ARGUMENT);
  EXPECT_EQ(plan(changed(&motet_deployment::residence, -1)), MOTET_INVALID_ARGUMENT);
  EXPECT_EQ(plan(changed(&motet_deployment::invariant, 2)), MOTET_INVALID_ARGUMENT);
  EXPECT_EQ(plan(changed(&motet_deployment::tokens, std::int64_t{-3})), MOTET_INVALID_ARGUMENT);
  EXPECT_EQ(plan(changed(&motet_deployment::residence, MOTET_RESIDENCE_PACKED)), MOTET_OK) << motet_last_error();
  EXPECT_EQ(plan(changed(&motet_deployment::memory_limit, std::int64_t{4096})), MOTET_WOULD_NOT_FIT);
}

TEST_F(CInterface, ForwardRefusesWhatThePlanDoesNotHold) {
  motet_deployment deployment = MOTET_DEPLOYMENT_INIT;
  deployment.tokens = 2;
  deployment.input = MOTET_F32;
  motet_plan* made = nullptr;
  ASSERT_EQ(motet_plan_create(checkpoint_, 1, &deployment, &made), MOTET_OK) << motet_last_error();
  motet_output_type type = MOTET_OUTPUT_TYPE_INIT;
  ASSERT_EQ(motet_plan_output(made, 2, &type), MOTET_OK);
  EXPECT_EQ(type.rows, 2);
  EXPECT_EQ(type.cols, 288);
  EXPECT_EQ(type.dtype, MOTET_F32);
  EXPECT_EQ(motet_plan_output(made, -1, &type), MOTET_INVALID_ARGUMENT);
  motet_layer* layer = nullptr;
  ASSERT_EQ(motet_layer_create(checkpoint_, made, &layer), MOTET_OK) << motet_last_error();
  std::vector<float> x(3 * 288, 0.25F), y(3 * 288, 77);
  motet_forward forward = MOTET_FORWARD_INIT;
  forward.hidden_states = x.data();
  forward.output = y.data();
  forward.tokens = 3;
  EXPECT_EQ(motet_layer_forward(layer, &forward), MOTET_TOKENS_EXCEED_PLAN);
  forward.tokens = -1;
  EXPECT_EQ(motet_layer_forward(layer, &forward), MOTET_WRONG_SHAPE);
  forward.tokens = 1;
  const std::int32_t out_of_range[4] = {0, 1, 2, 16}, twice[4] = {0, 1, 1, 2};
  const float weights[4] = {1, 1, 1, 1};
  forward.given_index = out_of_range;
  forward.given_weights = weights;
  EXPECT_EQ(motet_layer_forward(layer, &forward), MOTET_ID_OUT_OF_RANGE);
  forward.given_index = twice;
  EXPECT_EQ(motet_layer_forward(layer, &forward), MOTET_DUPLICATE_ID);
  EXPECT_EQ(y, std::vector<float>(3 * 288, 77)) << "a refused call must leave the output untouched";
  forward.given_index = nullptr;
  forward.given_weights = nullptr;
  EXPECT_EQ(motet_layer_forward(layer, &forward), MOTET_OK) << motet_last_error();
  EXPECT_NE(y[0], 77);
  EXPECT_EQ(y[288], 77);
  motet_layer_release(layer);
  motet_plan_release(made);
}

TEST_F(CInterface, InfoNamesTheLayersThatAre) {
  motet_layer_info info = MOTET_LAYER_INFO_INIT;
  EXPECT_EQ(motet_checkpoint_layer_info(checkpoint_, 5, &info), MOTET_INVALID_ARGUMENT);
  EXPECT_EQ(motet_checkpoint_layer_info(checkpoint_, 1, &info), MOTET_OK);
  EXPECT_EQ(info.experts, 16);
  EXPECT_EQ(motet_checkpoint_layer_number(checkpoint_, 1), 1);
  EXPECT_EQ(motet_checkpoint_layer_number(checkpoint_, 2), -1);
  EXPECT_STREQ(motet_status_name(MOTET_TOKENS_EXCEED_PLAN), "tokens_exceed_plan");
}

}  // namespace
