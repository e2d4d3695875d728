// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

namespace motet {
namespace {

bool is_moe(const Config& config, std::int64_t) { return config.integer({"num_local_experts"}) > 0; }

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router.score = RouterScore::logits;
  spec.router.normalize = RouterNormalize::softmax;
  spec.shared.intermediate = config.integer_or({"shared_intermediate_size"}, 0);
  spec.shared.activation = spec.activation;
}

}  // namespace

extern const Family granitemoe_family;
const Family granitemoe_family = {
    .name = "granitemoe",
    .about = "Granite MoE, shared and hybrid too: stacked halves, softmax over the chosen logits, shared expert beside the block",
    .model_types = {"granitemoe", "granitemoeshared", "granitemoehybrid"},
    .names = {.scopes = {"block_sparse_moe.", "shared_mlp."},
              .experts = {{.gate_up = "block_sparse_moe.input_linear", .down = "block_sparse_moe.output_linear", .order = GateUpOrder::halves}},
              .router = "block_sparse_moe.router.layer",
              .shared = {.gate_up = "shared_mlp.input_linear", .down = "shared_mlp.output_linear", .order = GateUpOrder::halves}},
    .layer_count = trunk_layers,
    .is_moe = is_moe,
    .describe = describe,
};

}  // namespace motet
