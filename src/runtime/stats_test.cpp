// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>

#include "motet/verify.h"
#include "runtime/check_runs.h"

namespace motet {
namespace {

ForwardStats stats_of(const LayerSpec& spec, std::int64_t tokens) {
  const auto layer = Layer::create(plan_way(spec, {.backend = "reference", .target = ""}, 4, Environment::probe()).value(),
                                   synthetic_weights(spec, 1));
  const CheckRun run = run_tokens(*layer, synthetic_hidden_states(tokens, spec.hidden, 2), 0, tokens);
  EXPECT_TRUE(run.status.ok()) << run.status.text();
  std::int64_t load = 0;
  for (std::int64_t e = 0; e < spec.experts; ++e) load += layer->expert_load()[e];
  EXPECT_EQ(load, layer->stats().rows);
  return layer->stats();
}

TEST(ForwardStats, CountDistinctBytesOncePerForwardAndFlopsPerRow) {
  const LayerSpec& spec = check_shape("intermediate-704");  // every token goes to all eight experts
  const std::int64_t expert = 3 * 192 * 704, router = 8 * 192;
  for (const std::int64_t tokens : {1, 3}) {
    const ForwardStats stats = stats_of(spec, tokens);
    EXPECT_EQ(stats.tokens, tokens);
    EXPECT_EQ(stats.rows, 8 * tokens);
    EXPECT_EQ(stats.experts_used, 8);
    EXPECT_EQ(stats.weight_bytes, 2 * (8 * expert + router));
    EXPECT_EQ(stats.flops, 2.0 * static_cast<double>((8 * expert + router) * tokens));
  }
}

TEST(ForwardStats, CountScalesAndBiasesWithTheCodes) {
  const LayerSpec spec = with_format(check_shape("hidden-2880"), "mxfp4");
  const ForwardStats stats = stats_of(spec, 1);
  const std::int64_t values = 3 * 2880 * 96, biases = 2 * 96 + 2880, router = 4 * 2880 + 4;
  EXPECT_EQ(stats.experts_used, 2);
  EXPECT_EQ(stats.weight_bytes, 2 * (values / 2 + values / 32 + biases * 2) + router * 2);
}

TEST(ForwardStats, StagesAddUpToNoMoreThanTheWhole) {
  const ForwardStats stats = stats_of(check_shape("latent-1024"), 4);
  EXPECT_LE(std::accumulate(std::begin(stats.seconds), std::end(stats.seconds), 0.0), stats.total_seconds);
  for (const StageId stage : {StageId::shared, StageId::route, StageId::latent_in, StageId::experts, StageId::tail})
    EXPECT_GT(stats.seconds[static_cast<int>(stage)], 0) << name_of(stage);
}

}  // namespace
}  // namespace motet
