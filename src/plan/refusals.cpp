// SPDX-License-Identifier: Apache-2.0
#include "plan/refusals.h"

#include <algorithm>
#include <iterator>

namespace motet {
namespace {

/// Codes that say "the question is wrong"; every other code says "not here".
constexpr std::string_view kInvalid[] = {"activation_gate",
                                         "activation_limits",
                                         "backend_unknown",
                                         "block_size",
                                         "extent_not_positive",
                                         "fabric_unknown",
                                         "group_too_small",
                                         "groups",
                                         "groups_kept",
                                         "input_dtype",
                                         "latent_projection",
                                         "memory_limit",
                                         "not_finite",
                                         "parallel_degree",
                                         "ranks_too_many",
                                         "reduction_not_whole",
                                         "router_range",
                                         "shared_projection",
                                         "sparsemixer_top_k",
                                         "strategy_unknown",
                                         "target_unknown",
                                         "threads",
                                         "too_large",
                                         "too_many_experts",
                                         "too_many_rows",
                                         "top_k_exceeds_experts",
                                         "top_k_exceeds_groups",
                                         "weight_on_input_top_k",
                                         "wire_unknown",
                                         "wish_out_of_range",
                                         "zero_expert_kind",
                                         "zero_expert_scale"};

}  // namespace

ErrorCode error_code_of(const Refusal& refusal) noexcept {
  const bool invalid = std::find(std::begin(kInvalid), std::end(kInvalid), refusal.code) != std::end(kInvalid);
  return invalid ? ErrorCode::invalid_argument : ErrorCode::not_supported;
}

std::string sentence_of(const Refusal& refusal) {
  return refusal.rule + " (given " + refusal.given + "; needed " + refusal.needed + ") [" + refusal.code + "]";
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

}  // namespace motet
