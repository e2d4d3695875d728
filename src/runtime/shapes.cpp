// SPDX-License-Identifier: Apache-2.0
// Layer shapes of public models, in their published weight format and layout. A row holds what a config.json says; the family
// turns it into a layer, as it does for a checkpoint.
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/family.h"
#include "formats/format.h"
#include "motet/registry.h"
#include "routing/router_names.h"

namespace motet {
namespace {

struct ShapeRow {
  std::string_view name, family, format;
  std::string_view router;  ///< a name of routers(), where the family's own is not the model's; "" = the family's
  bool renormalise;         ///< norm_topk_prob
  std::int64_t hidden, intermediate, experts, top_k, shared, latent;
  double scale;  ///< routed scaling factor; 1 = none
  std::int64_t groups, groups_kept;
  std::string_view source;
};

// clang-format off
constexpr ShapeRow kShapes[] = {
    // name                 family         format       router     norm   hidden  inter experts k shared latent scale groups kept source
    {"gpt-oss-20b",         "gpt_oss",     "mxfp4",     "",        true,   2880,  2880,  32,  4,     0,    0, 1,     1, 1, "openai/gpt-oss-20b"},
    {"gpt-oss-120b",        "gpt_oss",     "mxfp4",     "",        true,   2880,  2880, 128,  4,     0,    0, 1,     1, 1, "openai/gpt-oss-120b"},
    {"qwen3-30b-a3b",       "qwen3_moe",   "bf16",      "",        true,   2048,   768, 128,  8,     0,    0, 1,     1, 1, "Qwen/Qwen3-30B-A3B"},
    {"qwen3-235b-a22b",     "qwen3_moe",   "bf16",      "",        true,   4096,  1536, 128,  8,     0,    0, 1,     1, 1, "Qwen/Qwen3-235B-A22B"},
    {"qwen3-coder-480b",    "qwen3_moe",   "bf16",      "",        true,   6144,  2560, 160,  8,     0,    0, 1,     1, 1, "Qwen/Qwen3-Coder-480B-A35B-Instruct"},
    {"qwen3-next-80b",      "qwen2_moe",   "bf16",      "",        true,   2048,   512, 512, 10,   512,    0, 1,     1, 1, "Qwen/Qwen3-Next-80B-A3B-Instruct"},
    {"qwen1.5-moe",         "qwen2_moe",   "bf16",      "",        false,  2048,  1408,  60,  4,  5632,    0, 1,     1, 1, "Qwen/Qwen1.5-MoE-A2.7B"},
    {"mixtral-8x7b",        "mixtral",     "bf16",      "",        true,   4096, 14336,   8,  2,     0,    0, 1,     1, 1, "mistralai/Mixtral-8x7B-v0.1"},
    {"mixtral-8x22b",       "mixtral",     "bf16",      "",        true,   6144, 16384,   8,  2,     0,    0, 1,     1, 1, "mistralai/Mixtral-8x22B-v0.1"},
    {"olmoe",               "olmoe",       "bf16",      "",        false,  2048,  1024,  64,  8,     0,    0, 1,     1, 1, "allenai/OLMoE-1B-7B-0924"},
    {"deepseek-v3",         "deepseek_v3", "fp8_block", "",        true,   7168,  2048, 256,  8,  2048,    0, 2.5,   8, 4, "deepseek-ai/DeepSeek-V3"},
    {"deepseek-v2-lite",    "deepseek_v3", "bf16",      "softmax", false,  2048,  1408,  64,  6,  2816,    0, 1,     1, 1, "deepseek-ai/DeepSeek-V2-Lite"},
    {"kimi-k2",             "deepseek_v3", "fp8_block", "",        true,   7168,  2048, 384,  8,  2048,    0, 2.827, 1, 1, "moonshotai/Kimi-K2-Instruct"},
    {"glm-4.5",             "deepseek_v3", "bf16",      "",        true,   5120,  1536, 160,  8,  1536,    0, 2.5,   1, 1, "zai-org/GLM-4.5"},
    {"glm-5",               "deepseek_v3", "bf16",      "",        true,   6144,  2048, 256,  8,  2048,    0, 2.5,   1, 1, "zai-org/GLM-5"},
    {"nemotron-3-nano",     "nemotron_h",  "bf16",      "",        true,   2688,  1856, 128,  6,  3712,    0, 2.5,   1, 1, "nvidia/Nemotron-3-Nano-30B-A3B"},
    {"nemotron-3-super",    "nemotron_h",  "bf16",      "",        true,   4096,  2688, 512, 22,  5376, 1024, 5,     1, 1, "nvidia/Nemotron-3-Super-120B-A12B"},
    {"nemotron-3-ultra",    "nemotron_h",  "bf16",      "",        true,   8192,  5120, 512, 22, 10240, 2048, 5,     1, 1, "nvidia/Nemotron-3-Ultra-550B-A55B"},
    {"llama-4-scout",       "llama4",      "bf16",      "",        true,   5120,  8192,  16,  1,  8192,    0, 1,     1, 1, "meta-llama/Llama-4-Scout-17B-16E"},
    {"llama-4-maverick",    "llama4",      "bf16",      "",        true,   5120,  8192, 128,  1,  8192,    0, 1,     1, 1, "meta-llama/Llama-4-Maverick-17B-128E"},
    {"granite-4-h-small",   "granitemoe",  "bf16",      "",        true,   4096,   768,  72, 10,  1536,    0, 1,     1, 1, "ibm-granite/granite-4.0-h-small"},
};
// clang-format on

ProjectionSpec projection_of(std::string_view format, bool bias) {
  const Format* known = find_format(format);
  MOTET_CHECK(known != nullptr, "shape table names format %.*s", static_cast<int>(format.size()), format.data());
  return {.format = std::string(format), .block_rows = known->facts.block_rows, .block_cols = known->facts.block_cols, .bias = bias};
}

/// The row as a config.json; every family reads the keys that are its own.
Json config_of(const ShapeRow& row) {
  return {{"model_type", row.family},
          {"hidden_size", row.hidden},
          {"intermediate_size", row.intermediate},
          {"moe_intermediate_size", row.intermediate},
          {"moe_latent_size", row.latent},
          {"num_experts", row.experts},
          {"num_experts_per_tok", row.top_k},
          {"n_shared_experts", row.shared / row.intermediate},
          {"shared_intermediate_size", row.shared},
          {"shared_expert_intermediate_size", row.shared},
          {"moe_shared_expert_intermediate_size", row.shared},
          {"norm_topk_prob", row.renormalise},
          {"routed_scaling_factor", row.scale},
          {"n_group", row.groups},
          {"topk_group", row.groups_kept}};
}

NamedShape shape_of(const ShapeRow& row) {
  const Config config(config_of(row).dump(), "");
  const Family& family = family_of(config);
  LayerSpec spec;
  spec.family = family.name;
  family.describe(config, spec);
  const BodyNames& layout = family.names.experts.back();  // stacks, where a family has them
  spec.gate_up_order = layout.gate_up.empty() ? GateUpOrder::separate : layout.order;
  spec.gate_up = projection_of(row.format, spec.gate_up.bias);
  spec.down = projection_of(row.format, spec.down.bias);
  spec.gate_up.transposed = spec.down.transposed = layout.transposed && is_plain(find_format(row.format)->facts);
  if (spec.shared.intermediate > 0) {
    const BodyNames& shared = family.names.shared;
    spec.shared.gate_up_order = shared.gate_up.empty() ? GateUpOrder::separate : shared.order;
    spec.shared.gate_up = projection_of(row.format, spec.shared.gate_up.bias);
    spec.shared.down = projection_of(row.format, spec.shared.down.bias);
  }
  if (spec.latent > 0) spec.latent_in = spec.latent_out = projection_of("bf16", false);
  if (!row.router.empty()) {
    const NamedRouter* router = find_router(row.router);
    MOTET_CHECK(router != nullptr, "shape table names router %.*s", static_cast<int>(row.router.size()), row.router.data());
    spec.router = router->spec;
  }
  return {.name = std::string(row.name), .spec = spec, .source = std::string(row.source)};
}

}  // namespace

const std::vector<NamedShape>& shapes() {
  static const std::vector<NamedShape> built = [] {
    std::vector<NamedShape> list;
    for (const ShapeRow& row : kShapes) list.push_back(shape_of(row));
    return list;
  }();
  return built;
}

}  // namespace motet
