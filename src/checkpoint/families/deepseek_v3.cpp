// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "checkpoint/family.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"moe_intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router = sigmoid_group_router(config);
  if (!checked_mul(config.integer_or({"n_shared_experts"}, 0), spec.intermediate, &spec.shared.intermediate)) {
    fail(ErrorCode::bad_input, "config.json: 'n_shared_experts' times 'moe_intermediate_size' does not fit 64 bits");
  }
  spec.shared.activation = spec.activation;
}

}  // namespace

extern const Family deepseek_v3_family;
const Family deepseek_v3_family = {
    .name = "deepseek_v3",
    .about = "DeepSeek-V3 and what is laid out alike (Kimi K2, GLM-4.5): per-expert, sigmoid router with groups, shared experts",
    .model_types = {"deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa"},
    .names = {.scopes = {"mlp."},
              .experts = {{.gate = "mlp.experts.{e}.gate_proj", .up = "mlp.experts.{e}.up_proj", .down = "mlp.experts.{e}.down_proj"}},
              .router = "mlp.gate",
              .selection_bias = "mlp.gate.e_score_correction_bias",
              .shared = {.gate = "mlp.shared_experts.gate_proj", .up = "mlp.shared_experts.up_proj", .down = "mlp.shared_experts.down_proj"}},
    .layer_count = trunk_layers,
    .is_moe = after_dense_layers,
    .describe = describe,
};

}  // namespace motet
