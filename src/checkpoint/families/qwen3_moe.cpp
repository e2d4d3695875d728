// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

namespace motet {
namespace {

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"moe_intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router = softmax_router(config.boolean_or({"norm_topk_prob"}, false));
}

}  // namespace

extern const Family qwen3_moe_family;
const Family qwen3_moe_family = {
    .name = "qwen3_moe",
    .about = "Qwen3-MoE: per-expert gate, up, down, softmax router, no shared expert",
    .model_types = {"qwen3_moe"},
    .names = {.scopes = {"mlp."},
              .experts = {{.gate = "mlp.experts.{e}.gate_proj", .up = "mlp.experts.{e}.up_proj", .down = "mlp.experts.{e}.down_proj"}},
              .router = "mlp.gate"},
    .layer_count = trunk_layers,
    .is_moe = sparse_step_layer,
    .describe = describe,
};

}  // namespace motet
