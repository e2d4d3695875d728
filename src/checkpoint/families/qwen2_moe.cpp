// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

namespace motet {
namespace {

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"moe_intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router = softmax_router(config.boolean_or({"norm_topk_prob"}, false));
  spec.shared.intermediate = config.integer({"shared_expert_intermediate_size"});
  spec.shared.gate = true;
  spec.shared.activation = spec.activation;
}

}  // namespace

extern const Family qwen2_moe_family;
const Family qwen2_moe_family = {
    .name = "qwen2_moe",
    .about = "Qwen2-MoE and Qwen1.5-MoE: per-expert gate, up, down, softmax router, shared expert behind a sigmoid gate",
    .model_types = {"qwen2_moe"},
    .names = {.scopes = {"mlp."},
              .experts = {{.gate = "mlp.experts.{e}.gate_proj", .up = "mlp.experts.{e}.up_proj", .down = "mlp.experts.{e}.down_proj"}},
              .router = "mlp.gate",
              .shared = {.gate = "mlp.shared_expert.gate_proj", .up = "mlp.shared_expert.up_proj", .down = "mlp.shared_expert.down_proj"},
              .shared_gate = "mlp.shared_expert_gate"},
    .layer_count = trunk_layers,
    .is_moe = sparse_step_layer,
    .describe = describe,
};

}  // namespace motet
