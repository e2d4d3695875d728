// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

namespace motet {
namespace {

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"intermediate_size"}, spec);
  spec.activation.kind = ActivationKind::swiglu_oai;
  spec.activation.alpha = config.real_or({"swiglu_alpha"}, 1.702);
  spec.activation.limit = config.real_or({"swiglu_limit"}, 7.0);
  spec.activation.offset = 1;
  spec.gate_up.bias = spec.down.bias = true;
  spec.router.score = RouterScore::logits;
  spec.router.logit_bias = true;
  spec.router.normalize = RouterNormalize::softmax;
}

}  // namespace

extern const Family gpt_oss_family;
const Family gpt_oss_family = {
    .name = "gpt_oss",
    .about = "gpt-oss 20b and 120b: stacked experts with interleaved gate and up rows, biases, MXFP4 or BF16",
    .model_types = {"gpt_oss"},
    .names = {.scopes = {"mlp."},
              .experts = {{.gate_up = "mlp.experts.gate_up_proj", .down = "mlp.experts.down_proj", .order = GateUpOrder::interleaved, .transposed = true}},
              .router = "mlp.router"},
    .layer_count = trunk_layers,
    .is_moe = every_layer,
    .describe = describe,
};

}  // namespace motet
