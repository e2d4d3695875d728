// SPDX-License-Identifier: Apache-2.0
// A checkpoint family: which configs are of it, which layers are MoE, what the config says of a layer, how its tensors are
// named. One file src/checkpoint/families/NAME.cpp and one line in families.inc; docs/families/NAME.md describes it.
// Formats, shapes, byte layouts and all checks are the resolver's (resolve.h): a family holds facts only.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "motet/spec.h"

namespace motet {

/// Names of one feed-forward body below the layer, without ".weight". "{e}" stands for the expert number; a name without it
/// is a stack of all experts. "" = there is no such tensor. Either `gate_up` or `up` (with `gate` unless the body has none).
struct BodyNames {
  std::string_view gate = {}, up = {}, gate_up = {}, down = {};
  GateUpOrder order = GateUpOrder::separate;
  bool transposed = false;             ///< unquantised stacks lie [K,N] in the file
};

/// Names below "<prefix>layers.<i>.".
struct LayerNames {
  std::vector<std::string_view> scopes = {};    ///< name beginnings that belong to the MoE block: every tensor there must be explained
  std::vector<BodyNames> experts = {};         ///< layouts, tried in this order
  std::string_view router = {};           ///< module: .weight, .bias
  std::string_view selection_bias = {};    ///< whole tensor name
  BodyNames shared = {};
  std::string_view shared_gate = {};         ///< module
  std::string_view latent_in = {}, latent_out = {};  ///< modules
};

struct Family {
  std::string_view name, about;
  std::vector<std::string_view> model_types;
  LayerNames names;
  /// Layers of the trunk; MTP layers come behind them.
  std::int64_t (*layer_count)(const Config&);
  /// Whether the config says that layer `i` of the trunk is MoE.
  bool (*is_moe)(const Config&, std::int64_t layer);
  /// Fills what the config says of an MoE layer: extents, router, activation, shared expert, biases.
  void (*describe)(const Config&, LayerSpec& spec);
};

/// In the order of families.inc.
const std::vector<const Family*>& all_families();
/// By model_type of text_config or config. Throws Error(not_supported) that lists the families and suggests a close one.
const Family& family_of(const Config& config);

// ---------------------------------------------------------------- what several families say alike

/// num_hidden_layers.
std::int64_t trunk_layers(const Config& config);
bool every_layer(const Config& config, std::int64_t layer);
/// first_k_dense_replace and moe_layer_freq, or mlp_layer_types, which wins (DeepSeek).
bool after_dense_layers(const Config& config, std::int64_t layer);
/// mlp_only_layers and decoder_sparse_step (Qwen).
bool sparse_step_layer(const Config& config, std::int64_t layer);
/// hidden, intermediate, experts, top_k by their spellings; `intermediate` names the key of the expert width.
void describe_extents(const Config& config, Keys intermediate, LayerSpec& spec);
/// hidden_act and its spellings. Throws Error(not_supported) for one that has no formula here.
Activation activation_of(const Config& config, Keys keys, std::string_view absent);
/// softmax over all experts, top_k, weights renormalised or not.
RouterSpec softmax_router(bool renormalise);
/// sigmoid, selection bias, groups by their two best, weights renormalised, scaled (DeepSeek-V3, Nemotron-H).
RouterSpec sigmoid_group_router(const Config& config);

}  // namespace motet
