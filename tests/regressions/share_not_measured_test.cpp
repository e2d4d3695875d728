// SPDX-License-Identifier: Apache-2.0
// `motet run` said "share of this machine's limit: not measured" wherever 0.3 s were too short to make a buffer beyond the
// last-level cache resident (slow fresh pages; a host's cache of 480 MiB). It reads the layer's own weights now, which are
// resident.
#include <gtest/gtest.h>

#include "motet/motet.hpp"

namespace motet {
namespace {

TEST(ShareNotMeasured, TheReadRateIsThereAfterOneForwardAndOneShortMeasurement) {
  const auto checkpoint = Checkpoint::open(MOTET_SOURCE_DIR "/sample/gpt-oss-tiny");
  const LayerSpec& spec = checkpoint->layers().front().spec;
  const Plan made = plan(spec, {.tokens = 4, .input = DType::f32}, Environment::probe()).value();
  const auto layer = Layer::create(made, checkpoint->load(spec.layer));
  const std::vector<float> x = synthetic_hidden_states(4, spec.hidden, 1);
  std::vector<float> output(x.size());
  ASSERT_TRUE(layer
                  ->forward({.hidden_states = {x.data(), DType::f32, 4, spec.hidden}, .router_logits = {}},
                            {.output = {output.data(), DType::f32, 4, spec.hidden}})
                  .ok());
  RateWishes wishes;
  wishes.threads = made.threads;
  wishes.budget_seconds = 0.01;  // a thirtieth of what `motet run` has
  wishes.compute = false;
  wishes.resident = layer->weights_read();
  const MeasuredRates rates = measure_rates(wishes);
  EXPECT_GT(rates.read_bytes_per_second, 0);
  EXPECT_GT(rates.read_bytes, layer->stats().weight_bytes / 2);
  EXPECT_LE(rates.read_bytes, layer->stats().weight_bytes);
}

}  // namespace
}  // namespace motet
