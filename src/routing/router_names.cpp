// SPDX-License-Identifier: Apache-2.0
#include "routing/router_names.h"

namespace motet {
namespace {

constexpr NamedRouter kRouters[] = {
    {"softmax", "softmax over all experts, top-k, weights as they are (OLMoE, Jamba)", {}},
    {"softmax_sum", "softmax, top-k, weights divided by their sum (Mixtral, Qwen3-MoE)", {.normalize = RouterNormalize::sum}},
    {"softmax_p_norm",
     "softmax, top-k, weights divided by their p-norm (DBRX)",
     {.normalize = RouterNormalize::p_norm, .normalize_power = 1}},
    {"softmax_bias",
     "softmax, chosen with a bias, sum floored (ERNIE 4.5)",
     {.selection_bias = true, .normalize = RouterNormalize::sum, .normalize_floor = 1e-12}},
    {"softmax_zero_experts",
     "softmax with zero experts, chosen with a bias, scaled (LongCat-Flash)",
     {.selection_bias = true, .scale = 6, .zero_experts = 256, .zero_expert_kind = ZeroExpertKind::identity}},
    {"softmax_group_max",
     "softmax, groups kept by their largest score, scaled (DeepSeek V2)",
     {.groups = 8, .groups_kept = 3, .group_score = GroupScore::max, .scale = 16}},
    {"softmax_expert_scale",
     "softmax, top-k, divided by the sum, times a scale of each expert (Gemma 4)",
     {.normalize = RouterNormalize::sum, .per_expert_scale = true}},
    {"top_k_softmax",
     "top-k logits, softmax over the chosen (gpt-oss, Granite)",
     {.score = RouterScore::logits, .logit_bias = true, .normalize = RouterNormalize::softmax}},
    {"sigmoid_bias",
     "sigmoid, chosen with a bias, divided by the sum (MiniMax M2)",
     {.score = RouterScore::sigmoid, .selection_bias = true, .normalize = RouterNormalize::sum}},
    {"sigmoid_group_sum",
     "sigmoid, groups kept by their two largest biased scores, divided by the sum, scaled (DeepSeek V3)",
     {.score = RouterScore::sigmoid,
      .selection_bias = true,
      .groups = 8,
      .groups_kept = 4,
      .group_score = GroupScore::sum_of_two,
      .normalize = RouterNormalize::sum,
      .normalize_epsilon = 1e-20,
      .scale = 2.5}},
    {"sigmoid_sum_scale",
     "sigmoid, chosen with a bias, divided by the sum; the scale is on the routed sum (MiniMax M3)",
     {.score = RouterScore::sigmoid,
      .selection_bias = true,
      .normalize = RouterNormalize::sum,
      .scale = 2,
      .scale_site = ScaleSite::routed_sum}},
    {"sigmoid_soft_cap",
     "logits capped by tanh, sigmoid, chosen with a bias, divided by the sum (Laguna)",
     {.score = RouterScore::sigmoid, .selection_bias = true, .normalize = RouterNormalize::sum, .soft_cap = 30}},
    {"sigmoid_input",
     "top-k logits, sigmoid of each; the weight multiplies the expert's input (Llama 4)",
     {.score = RouterScore::logits, .weight_site = WeightSite::input, .sigmoid_weight = true}},
    {"sqrt_softplus_bias",
     "square root of softplus, chosen with a bias, divided by the sum, scaled (DeepSeek V4)",
     {.score = RouterScore::sqrt_softplus,
      .selection_bias = true,
      .normalize = RouterNormalize::sum,
      .normalize_epsilon = 1e-20,
      .scale = 1.5}},
    {"sqrt_softplus_hash",
     "experts looked up by token id, weights as sqrt_softplus_bias (first layers of DeepSeek V4)",
     {.score = RouterScore::sqrt_softplus,
      .selection = RouterSelection::hash,
      .normalize = RouterNormalize::sum,
      .normalize_epsilon = 1e-20,
      .scale = 1.5}},
    {"sparsemixer",
     "sparsemixer-2: each choice weighed among its near ties only (Phi-MoE)",
     {.score = RouterScore::logits, .selection = RouterSelection::sparsemixer, .jitter = 0.01}},
};

}  // namespace

std::span<const NamedRouter> named_routers() noexcept { return kRouters; }

const NamedRouter* find_router(std::string_view name) noexcept {
  for (const NamedRouter& router : kRouters) {
    if (router.name == name) return &router;
  }
  return nullptr;
}

}  // namespace motet
