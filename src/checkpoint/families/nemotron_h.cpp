// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

std::int64_t layer_count(const Config& config) {
  if (config.has({"num_hidden_layers"})) return config.integer({"num_hidden_layers"});
  if (const auto types = config.texts({"layers_block_type"})) return static_cast<std::int64_t>(types->size());
  return static_cast<std::int64_t>(config.text({"hybrid_override_pattern"}).size());
}

/// MoE is a layer of its own beside Mamba, attention and dense layers.
bool is_moe(const Config& config, std::int64_t layer) {
  const auto index = static_cast<std::size_t>(layer);
  if (const auto types = config.texts({"layers_block_type"})) {
    if (index >= types->size()) fail(ErrorCode::bad_input, "config.json: 'layers_block_type' names ", types->size(), " layers but layer ", layer, " exists");
    return (*types)[index] == "moe";
  }
  const std::string pattern = config.text({"hybrid_override_pattern"});
  if (index >= pattern.size()) fail(ErrorCode::bad_input, "config.json: 'hybrid_override_pattern' names ", pattern.size(), " layers but layer ", layer, " exists");
  return pattern[index] == 'E';
}

void describe(const Config& config, LayerSpec& spec) {
  describe_extents(config, {"moe_intermediate_size"}, spec);
  spec.latent = config.integer_or({"moe_latent_size"}, 0);
  spec.activation = activation_of(config, {"mlp_hidden_act"}, "relu2");
  if (spec.activation.gated) fail(ErrorCode::not_supported, "config.json: 'mlp_hidden_act' must be 'relu2': a body without a gate has no other formula here");
  spec.router = sigmoid_group_router(config);
  if (config.integer_or({"n_shared_experts"}, 1) > 0) spec.shared.intermediate = config.integer_or({"moe_shared_expert_intermediate_size"}, 0);
  spec.shared.activation = spec.activation;
  const bool bias = config.boolean_or({"mlp_bias"}, false);
  spec.gate_up.bias = spec.down.bias = spec.shared.gate_up.bias = spec.shared.down.bias = bias;
}

}  // namespace

extern const Family nemotron_h_family;
const Family nemotron_h_family = {
    .name = "nemotron_h",
    .about = "Nemotron-H: per-expert up and down without gate (relu2), sigmoid router, shared expert, latent or not",
    .model_types = {"nemotron_h"},
    .names = {.scopes = {"mixer."},
              .experts = {{.up = "mixer.experts.{e}.up_proj", .down = "mixer.experts.{e}.down_proj"},
                          {.up = "mixer.experts.up_proj", .down = "mixer.experts.down_proj"}},
              .router = "mixer.gate",
              .selection_bias = "mixer.gate.e_score_correction_bias",
              .shared = {.up = "mixer.shared_experts.up_proj", .down = "mixer.shared_experts.down_proj"},
              .latent_in = "mixer.fc1_latent_proj",
              .latent_out = "mixer.fc2_latent_proj"},
    .layer_count = layer_count,
    .is_moe = is_moe,
    .describe = describe,
};

}  // namespace motet
