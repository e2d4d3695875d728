// SPDX-License-Identifier: Apache-2.0
// L16: what a plan estimates from a spec is what the checkpoint counts from its tensors.
#include <filesystem>

#include "fixture.h"
#include "motet/checkpoint.h"

namespace motet::laws {
namespace {

TEST(L16, PlanAndCheckpointCountTheSameParametersAndBytes) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(MOTET_SOURCE_DIR) + "/tests/golden")) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const std::shared_ptr<Checkpoint> checkpoint = Checkpoint::open(entry.path().string());
    for (const LayerSummary& layer : checkpoint->layers()) {
      const PlanResult result = plan(layer.spec, {}, machine());
      ASSERT_TRUE(result.plan) << result.refusals.front().code;
      const Estimates& estimates = result.plan->estimates;
      EXPECT_EQ(estimates.parameters_total, layer.parameters);
      EXPECT_EQ(estimates.parameters_active, layer.parameters_per_token);
      EXPECT_EQ(estimates.weight_bytes_per_token, layer.bytes_per_token);
      std::int64_t read = 0;
      for (const TensorInfo& tensor : checkpoint->tensors())
        if (tensor.layer == layer.spec.layer && !tensor.role.ends_with(".input_scale")) read += tensor.bytes;
      EXPECT_GT(read, 0);
      EXPECT_GE(result.plan->memory.mapped, read);
      ++seen;
    }
  }
  EXPECT_GE(seen, 10);
}

}  // namespace
}  // namespace motet::laws
