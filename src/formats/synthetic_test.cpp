// SPDX-License-Identifier: Apache-2.0
#include "formats/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "formats/format.h"

namespace motet {
namespace {

ProjectionSpec projection(const Format& format) {
  ProjectionSpec out;
  out.format = format.facts.name;
  out.block_rows = format.facts.block_rows;
  out.block_cols = format.facts.block_cols;
  return out;
}

LayerSpec layer(const Format& format) {
  LayerSpec spec;
  spec.hidden = 320;
  spec.intermediate = 288;
  spec.experts = 3;
  spec.top_k = 2;
  spec.gate_up = spec.down = projection(format);
  return spec;
}

double root_mean_square(const Format& format, const WeightView& view) {
  std::vector<double> row(static_cast<std::size_t>(view.cols));
  double sum = 0;
  for (std::int64_t n = 0; n < view.rows; ++n) {
    format.decode(view, n, 0, view.cols, row.data());
    for (const double value : row) sum += value * value;
  }
  return std::sqrt(sum / static_cast<double>(view.rows * view.cols));
}

TEST(SyntheticWeights, KeepOutputsNearOneInEveryFormat) {
  for (const Format* format : all_formats()) {
    const auto weights = make_synthetic_weights(layer(*format), 1);
    for (const ExpertView& expert : weights->experts) {
      for (const WeightView* view : {&expert.gate, &expert.up, &expert.down}) {
        const double gain = root_mean_square(*format, *view) * std::sqrt(static_cast<double>(view->cols));
        EXPECT_GT(gain, 0.5) << format->facts.name;
        EXPECT_LT(gain, 2.0) << format->facts.name;
      }
    }
  }
}

TEST(SyntheticWeights, PassTheValueChecksOfTheirFormat) {
  for (const Format* format : all_formats()) {
    const auto weights = make_synthetic_weights(layer(*format), 2);
    if (format->check_values == nullptr) continue;  // a format without scales has no value rules
    for (const ExpertView& expert : weights->experts)
      EXPECT_EQ(format->check_values(expert.down), std::nullopt) << format->facts.name;
  }
}

TEST(SyntheticWeights, TakeAScaleOfTheWholeExtent) {  // block extent 0
  LayerSpec spec = layer(*find_format("fp8_block"));
  spec.down.block_rows = 1, spec.down.block_cols = 0;
  const auto weights = make_synthetic_weights(spec, 9);
  const WeightView& down = weights->experts[1].down;
  EXPECT_EQ(down.block_cols, spec.intermediate);
  EXPECT_EQ(down.scale_row_stride, 4);
  EXPECT_EQ(find_format("fp8_block")->check_values(down), std::nullopt);
}

TEST(SyntheticWeights, GiveNeighbouringBlocksDifferentExponents) {
  const auto weights = make_synthetic_weights(layer(*find_format("mxfp4")), 3);
  const WeightView& view = weights->experts[1].down;
  const auto scale = [&](std::int64_t n, std::int64_t block) {
    return static_cast<int>(view.scales[n * view.scale_row_stride + block * view.scale_col_stride]);
  };
  std::set<int> seen;
  for (std::int64_t n = 0; n + 1 < view.rows; ++n) {
    for (std::int64_t block = 0; block + 1 < view.cols / view.block_cols; ++block) {
      ASSERT_NE(scale(n, block), scale(n, block + 1));
      ASSERT_NE(scale(n, block), scale(n + 1, block));
      seen.insert(scale(n, block));
    }
  }
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_NE(static_cast<int>(weights->experts[0].down.scales[0]), scale(0, 0)) << "experts differ too";
}

TEST(SyntheticWeights, DependOnSpecAndSeedAlone) {
  const LayerSpec spec = layer(*find_format("bf16"));
  const auto a = make_synthetic_weights(spec, 4), b = make_synthetic_weights(spec, 4), c = make_synthetic_weights(spec, 5);
  const auto bytes = static_cast<std::size_t>(spec.intermediate * spec.hidden * 2);
  EXPECT_EQ(std::memcmp(a->experts[2].down.codes, b->experts[2].down.codes, bytes), 0);
  EXPECT_NE(std::memcmp(a->experts[2].down.codes, c->experts[2].down.codes, bytes), 0);
  EXPECT_NE(std::memcmp(a->experts[2].down.codes, a->experts[1].down.codes, bytes), 0);
}

TEST(SyntheticWeights, LieAsTheGateUpOrderSays) {
  LayerSpec spec = layer(*find_format("bf16"));
  const std::int64_t row = spec.hidden * 2;
  spec.gate_up_order = GateUpOrder::interleaved;
  auto weights = make_synthetic_weights(spec, 6);
  EXPECT_EQ(weights->experts[1].up.codes - weights->experts[1].gate.codes, row);
  EXPECT_EQ(weights->experts[1].up.row_stride, 2 * row);
  spec.gate_up_order = GateUpOrder::halves;
  weights = make_synthetic_weights(spec, 6);
  EXPECT_EQ(weights->experts[1].up.codes - weights->experts[1].gate.codes, row * spec.intermediate);
  EXPECT_EQ(weights->experts[1].up.row_stride, row);
  spec.gate_up.transposed = true;
  weights = make_synthetic_weights(spec, 6);
  EXPECT_EQ(weights->experts[1].up.codes - weights->experts[1].gate.codes, spec.intermediate * 2);
  EXPECT_EQ(weights->experts[1].up.row_stride, 2);
  EXPECT_EQ(weights->experts[1].up.col_stride, spec.intermediate * 2 * 2);
}

TEST(SyntheticWeights, KeepBlockScalesOfTheHalvesApart) {
  LayerSpec spec = layer(*find_format("fp8_block"));  // 288 rows: the second half begins inside a block of 128
  spec.gate_up_order = GateUpOrder::halves;
  const auto weights = make_synthetic_weights(spec, 7);
  const std::int64_t grid_row = 3 * 4;  // 320 columns in blocks of 128
  EXPECT_EQ(weights->experts[0].up.scales - weights->experts[0].gate.scales, 3 * grid_row);
}

TEST(SyntheticWeights, HoldWhatTheSpecAsksFor) {
  const Format& bf16 = *find_format("bf16");
  LayerSpec spec = layer(bf16);
  spec.latent = 64;
  spec.latent_norm = true;
  spec.latent_in = spec.latent_out = projection(bf16);
  spec.gate_up.bias = spec.down.bias = true;
  spec.shared = {.intermediate = 96,
                 .gate = true,
                 .activation = {},
                 .gate_up_order = GateUpOrder::separate,
                 .gate_up = projection(bf16),
                 .down = projection(bf16)};
  spec.router.logit_bias = spec.router.selection_bias = spec.router.per_expert_scale = true;
  spec.router.zero_experts = 2;
  spec.router.selection = RouterSelection::hash;
  const auto weights = make_synthetic_weights(spec, 8);
  EXPECT_EQ(weights->router.rows, 5);
  EXPECT_EQ(weights->router_bias.count, 5);
  EXPECT_EQ(weights->selection_bias.count, 5);
  EXPECT_EQ(weights->per_expert_scale.count, 3);
  EXPECT_EQ(weights->latent_in.rows, 64);
  EXPECT_EQ(weights->latent_out.rows, 320);
  EXPECT_EQ(weights->latent_norm.count, 64);
  EXPECT_EQ(weights->shared.down.cols, 96);
  EXPECT_EQ(weights->shared_gate.count, 320);
  EXPECT_EQ(weights->experts[0].up.cols, 64);
  EXPECT_EQ(weights->experts[0].gate_bias.count, 288);
  EXPECT_EQ(weights->experts[0].down_bias.count, 64);
  std::int64_t pair[2];
  std::memcpy(pair, weights->token_table + 16 * (weights->vocabulary - 1), sizeof pair);
  EXPECT_NE(pair[0], pair[1]);
}

ErrorCode code_of(const LayerSpec& spec) {
  try {
    make_synthetic_weights(spec, 1);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

TEST(SyntheticWeights, RefuseWhatCannotBeMadeByName) {
  LayerSpec spec = layer(*find_format("mxfp4"));
  spec.gate_up.transposed = true;
  EXPECT_EQ(code_of(spec), ErrorCode::not_supported);
  spec = layer(*find_format("mxfp4"));
  spec.hidden = 321;
  EXPECT_EQ(code_of(spec), ErrorCode::invalid_argument);
  spec = layer(*find_format("bf16"));
  spec.hidden = std::numeric_limits<std::int64_t>::max() / 4;
  EXPECT_EQ(code_of(spec), ErrorCode::invalid_argument);
  spec.hidden = std::int64_t{1} << 44;  // representable, but not to be had
  spec.intermediate = 1;
  EXPECT_EQ(code_of(spec), ErrorCode::would_not_fit);
  spec = layer(*find_format("bf16"));
  spec.down.format = "int3";
  EXPECT_EQ(code_of(spec), ErrorCode::not_supported);
}

}  // namespace
}  // namespace motet
