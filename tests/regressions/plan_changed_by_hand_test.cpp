// SPDX-License-Identifier: Apache-2.0
// A plan whose number of threads was raised by hand was accepted, though its workspace holds scratch for the planned threads only:
// forward then wrote behind the workspace. Layer::create refuses such a plan now.
#include <gtest/gtest.h>

#include "motet/motet.hpp"

namespace motet {
namespace {

TEST(PlanChangedByHand, WithMoreThreadsThanItsScratchHoldsIsRefused) {
  const auto checkpoint = Checkpoint::open(MOTET_SOURCE_DIR "/sample/gpt-oss-tiny");
  const LayerSpec& spec = checkpoint->layers().front().spec;
  Plan changed = plan(spec, {.tokens = 4, .wishes = {.threads = 1}}, Environment::probe()).value();
  const auto weights = checkpoint->load(spec.layer);
  ASSERT_NE(Layer::create(changed, weights), nullptr);
  changed.threads = 64;
  try {
    Layer::create(changed, weights);
    ADD_FAILURE() << "a plan of one thread ran with 64";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  }
}

}  // namespace
}  // namespace motet
