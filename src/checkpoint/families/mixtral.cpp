// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"

namespace motet {
namespace {

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"intermediate_size"}, spec);
  spec.activation = activation_of(config, {"hidden_act"}, "silu");
  spec.router = softmax_router(true);
}

}  // namespace

extern const Family mixtral_family;
const Family mixtral_family = {
    .name = "mixtral",
    .about = "Mixtral: per-expert w1 (gate), w3 (up), w2 (down), softmax router, renormalised",
    .model_types = {"mixtral"},
    .names = {.scopes = {"block_sparse_moe."},
              .experts = {{.gate = "block_sparse_moe.experts.{e}.w1", .up = "block_sparse_moe.experts.{e}.w3", .down = "block_sparse_moe.experts.{e}.w2"}},
              .router = "block_sparse_moe.gate"},
    .layer_count = trunk_layers,
    .is_moe = every_layer,
    .describe = describe,
};

}  // namespace motet
