// SPDX-License-Identifier: Apache-2.0
#include "runtime/weights_read.h"

#include <gtest/gtest.h>

#include "motet/verify.h"
#include "runtime/check_runs.h"

namespace motet {
namespace {

std::int64_t sum(const std::vector<ByteSpan>& spans) {
  std::int64_t bytes = 0;
  for (const ByteSpan& span : spans) bytes += span.bytes;
  return bytes;
}

/// The check shape whose layer has no biases: all that counts as read are codes and scales.
LayerSpec shape_in(const std::string& format, GateUpOrder order, bool transposed) {
  LayerSpec spec = with_format(check_shape("intermediate-704"), format);
  spec.gate_up_order = order;
  spec.gate_up.transposed = spec.down.transposed = transposed;
  return spec;
}

TEST(WeightsRead, SpansAreTheBytesThatHadToBeRead) {
  const struct {
    const char* format;
    GateUpOrder order;
    bool transposed;
  } cases[] = {{"bf16", GateUpOrder::separate, false},      {"bf16", GateUpOrder::halves, false},
               {"bf16", GateUpOrder::interleaved, false},   {"bf16", GateUpOrder::separate, true},
               {"bf16", GateUpOrder::halves, true},         {"bf16", GateUpOrder::interleaved, true},
               {"mxfp4", GateUpOrder::interleaved, false},  {"nvfp4", GateUpOrder::separate, false},
               {"fp8_block", GateUpOrder::separate, false}, {"f32", GateUpOrder::separate, false}};
  for (const auto& each : cases) {
    const LayerSpec spec = shape_in(each.format, each.order, each.transposed);
    const auto layer = Layer::create(plan_way(spec, {.backend = "reference", .target = ""}, 3, Environment::probe()).value(),
                                     synthetic_weights(spec, 1));
    EXPECT_TRUE(layer->weights_read().empty()) << "before any forward";
    ASSERT_TRUE(run_tokens(*layer, synthetic_hidden_states(3, spec.hidden, 2), 0, 3).status.ok());
    const std::vector<ByteSpan> spans = layer->weights_read();
    EXPECT_EQ(sum(spans), layer->stats().weight_bytes)
        << each.format << ", order " << static_cast<int>(each.order) << (each.transposed ? ", transposed" : "");
    for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_GT(spans[i].data, spans[i - 1].data + spans[i - 1].bytes);
    ASSERT_TRUE(run_tokens(*layer, {}, 0, 0).status.ok());
    EXPECT_TRUE(layer->weights_read().empty()) << "zero tokens read nothing";
  }
}

TEST(WeightsRead, ExpertsWithoutRowsAreLeftOut) {
  const LayerSpec spec = check_shape("hidden-2880");
  const auto layer = Layer::create(plan_way(spec, {.backend = "reference", .target = ""}, 1, Environment::probe()).value(),
                                   synthetic_weights(spec, 1));
  ASSERT_TRUE(run_tokens(*layer, synthetic_hidden_states(1, spec.hidden, 2), 0, 1).status.ok());
  const std::int64_t expert = 3 * 2880 * 96 * 2, router = 4 * 2880 * 2;
  EXPECT_EQ(sum(layer->weights_read()), 2 * expert + router) << "two experts of four, without their biases";
}

TEST(WeightsRead, SharedExpertAndLatentProjectionsAreRead) {
  const LayerSpec& spec = check_shape("latent-1024");
  const auto layer = Layer::create(plan_way(spec, {.backend = "reference", .target = ""}, 8, Environment::probe()).value(),
                                   synthetic_weights(spec, 1));
  ASSERT_TRUE(run_tokens(*layer, synthetic_hidden_states(8, spec.hidden, 2), 0, 8).status.ok());
  const std::int64_t bias = 6 * 4;  // the router's selection bias is counted as read
  EXPECT_EQ(sum(layer->weights_read()), layer->stats().weight_bytes - bias);
}

TEST(WeightsRead, PackedWeightsStandForTheExperts) {
  const LayerSpec& spec = check_shape("latent-1024");
  const auto weights = synthetic_weights(spec, 1);
  const std::vector<std::int64_t> rows(6, 1);
  const std::vector<std::byte> arena(1000);
  const auto spans = spans_read(*weights, {.expert_rows = rows.data(), .packed = {arena.data(), 1000}, .shared = true});
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].data, arena.data());
  EXPECT_EQ(spans[0].bytes, 1000);
}

TEST(WeightsRead, JoinedSpansHoldEveryByteOnce) {
  const std::byte* at = reinterpret_cast<const std::byte*>(std::uintptr_t{4096});
  const auto spans = joined({{at + 50, 10}, {at, 20}, {at + 20, 5}, {at + 10, 8}, {at + 70, 0}, {at + 55, 10}});
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].bytes, 25);
  EXPECT_EQ(spans[1].data, at + 50);
  EXPECT_EQ(spans[1].bytes, 15);
}

}  // namespace
}  // namespace motet
