// SPDX-License-Identifier: Apache-2.0
#include "runtime/tail.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace motet {
namespace {

std::vector<TailStep> steps_of(std::initializer_list<TailOp> ops) {
  std::vector<TailStep> steps;
  for (const TailOp op : ops) steps.push_back({.op = op});
  return steps;
}

TEST(Tail, ScaleReachesRoutedSumsOnly) {
  std::vector<float> value{1, 2}, shared{10, 20}, output(2);
  TailArgs args;
  args.value = value.data();
  args.width = 2;
  args.routed_scale = 3;
  args.shared = shared.data();
  args.output = {output.data(), DType::f32, 1, 2};
  run_tail_steps(args, steps_of({TailOp::truncate, TailOp::scale, TailOp::add_shared, TailOp::round}), 0, 1);
  EXPECT_EQ(output, (std::vector<float>{13, 26}));
}

TEST(Tail, SharedGateIsSigmoidOfTheDotProduct) {
  const std::vector<float> x{1, -2, 0.5f}, gate{0.5f, 0.25f, 4};
  EXPECT_FLOAT_EQ(shared_gate_value(gate.data(), {x.data(), DType::f32, 1, 3}, 0), 1 / (1 + std::exp(-2.0f)));
}

TEST(Tail, IdentityExpertsAddWeightedInputsDropExpertsNothing) {
  const std::vector<float> x{1, 2, 100, 200}, weight{0.5f, 0.25f, 3, 9};
  const std::vector<std::int32_t> expert{4, 1, -1, 5};  // 4 and 5 are zero experts of a layer with four
  for (const ZeroExpertKind kind : {ZeroExpertKind::identity, ZeroExpertKind::drop}) {
    std::vector<float> value{0, 0, 1, 1};
    TailArgs args;
    args.value = value.data();
    args.width = 2;
    args.hidden_states = {x.data(), DType::f32, 2, 2};
    args.expert = expert.data();
    args.weight = weight.data();
    args.experts = 4;
    args.top_k = 2;
    args.zero_expert_kind = kind;
    run_tail_steps(args, steps_of({TailOp::add_zero_experts}), 0, 2);
    EXPECT_EQ(value,
              kind == ZeroExpertKind::identity ? (std::vector<float>{0.5f, 1, 901, 1801}) : (std::vector<float>{0, 0, 1, 1}));
  }
}

TEST(Tail, LatentNormHasUnitMeanSquareTimesItsWeight) {
  std::vector<float> value{3, 4};
  const std::vector<float> weight{1, 2};
  TailArgs args;
  args.value = value.data();
  args.width = 2;
  args.norm_weight = weight.data();
  run_tail_steps(args, steps_of({TailOp::latent_norm}), 0, 1);
  EXPECT_FLOAT_EQ(value[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(value[1], 8 / std::sqrt(12.5f));
}

TEST(Tail, OutputIsRoundedOnceTiesToEven) {
  std::vector<float> value{1 + 0x1p-8f, 1 + 0x1.8p-7f, -1 - 0x1.01p-8f};  // tie down, tie up, above the tie
  std::vector<std::uint16_t> output(3);
  TailArgs args;
  args.value = value.data();
  args.width = 3;
  args.output = {output.data(), DType::bf16, 1, 3};
  run_tail_steps(args, steps_of({TailOp::round}), 0, 1);
  EXPECT_EQ(output, (std::vector<std::uint16_t>{0x3F80, 0x3F82, 0xBF81}));
}

}  // namespace
}  // namespace motet
