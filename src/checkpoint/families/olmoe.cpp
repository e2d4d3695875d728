// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

namespace motet {
namespace {

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router = softmax_router(config.boolean_or({"norm_topk_prob"}, false));
}

}  // namespace

extern const Family olmoe_family;
const Family olmoe_family = {
    .name = "olmoe",
    .about = "OLMoE: per-expert gate, up, down, softmax router, weights not renormalised",
    .model_types = {"olmoe"},
    .names = {.scopes = {"mlp."},
              .experts = {{.gate = "mlp.experts.{e}.gate_proj", .up = "mlp.experts.{e}.up_proj", .down = "mlp.experts.{e}.down_proj"}},
              .router = "mlp.gate"},
    .layer_count = trunk_layers,
    .is_moe = every_layer,
    .describe = describe,
};

}  // namespace motet
