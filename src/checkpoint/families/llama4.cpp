// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "checkpoint/family.h"

namespace motet {
namespace {

bool is_moe(const Config& config, std::int64_t layer) {
  if (const auto layers = config.integers({"moe_layers"})) return std::find(layers->begin(), layers->end(), layer) != layers->end();
  const std::int64_t step = config.integer_or({"interleave_moe_layer_step"}, 1);
  return step > 0 && layer % step == step - 1;
}

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router.score = RouterScore::logits;
  spec.router.sigmoid_weight = true;
  spec.router.weight_site = WeightSite::input;
  spec.shared.intermediate = spec.intermediate;
  spec.shared.activation = spec.activation;
}

}  // namespace

extern const Family llama4_family;
const Family llama4_family = {
    .name = "llama4",
    .about = "Llama 4: transposed stacks (or per-expert tensors), sigmoid of the chosen logit multiplies the expert's input, shared expert",
    .model_types = {"llama4", "llama4_text"},
    .names = {.scopes = {"feed_forward."},
              .experts = {{.gate = "feed_forward.experts.{e}.gate_proj", .up = "feed_forward.experts.{e}.up_proj", .down = "feed_forward.experts.{e}.down_proj"},
                          {.gate_up = "feed_forward.experts.gate_up_proj", .down = "feed_forward.experts.down_proj", .order = GateUpOrder::halves, .transposed = true}},
              .router = "feed_forward.router",
              .shared = {.gate = "feed_forward.shared_expert.gate_proj", .up = "feed_forward.shared_expert.up_proj", .down = "feed_forward.shared_expert.down_proj"}},
    .layer_count = trunk_layers,
    .is_moe = is_moe,
    .describe = describe,
};

}  // namespace motet
