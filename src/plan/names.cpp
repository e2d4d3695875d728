// SPDX-License-Identifier: Apache-2.0
#include "plan/names.h"

#include <iterator>

namespace motet {
namespace {

/// The name at an enumerator's number; "?" for a number that no enumerator has (a value cast from outside).
template <std::size_t N, class Enum>
std::string_view pick(const std::string_view (&names)[N], Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "?";
}

}  // namespace

std::string_view name_of(Axis value) noexcept {
  static constexpr std::string_view kNames[] = {"hidden",   "latent", "gate",       "up",         "down_in",
                                                "down_out", "shared", "scale_rows", "scale_cols", "tokens"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Axis::tokens) + 1);
  return pick(kNames, value);
}
std::string_view name_of(StageId value) noexcept {
  static constexpr std::string_view kNames[] = {"input",    "shared",  "route",    "map",     "latent_in", "prepare",
                                                "dispatch", "experts", "finalize", "combine", "tail"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(StageId::tail) + 1);
  return pick(kNames, value);
}
std::string_view name_of(TailOp value) noexcept {
  static constexpr std::string_view kNames[] = {"truncate",   "reduce",           "scale", "latent_norm", "latent_out",
                                                "add_shared", "add_zero_experts", "round"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(TailOp::round) + 1);
  return pick(kNames, value);
}
std::string_view name_of(AreaId value) noexcept {
  static constexpr std::string_view kNames[] = {
      "logits",   "top_k_index",    "top_k_weights",   "counts",     "row_of",     "token_of",      "x",    "latent_x", "permuted",
      "act",      "permuted_codes", "permuted_scales", "act_codes",  "act_scales", "linear_scales", "rows", "partial",  "routed",
      "routed_x", "routed_out",     "shared_act",      "shared_out", "scratch"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(AreaId::scratch) + 1);
  return pick(kNames, value);
}
std::string_view name_of(Verdict value) noexcept {
  static constexpr std::string_view kNames[] = {"chosen", "eligible", "refused"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Verdict::refused) + 1);
  return pick(kNames, value);
}
std::string_view name_of(Layout value) noexcept {
  static constexpr std::string_view kNames[] = {"row_major",    "linear_scales", "flat_scales", "swizzled_128x4",
                                                "column_major", "scalar",        "list"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Layout::list) + 1);
  return pick(kNames, value);
}
std::string_view name_of(Fit value) noexcept {
  static constexpr std::string_view kNames[] = {"fits", "does_not_fit", "would_fit"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Fit::would_fit) + 1);
  return pick(kNames, value);
}
std::string_view name_of(Arithmetic value) noexcept {
  static constexpr std::string_view kNames[] = {"exact", "bf16", "fast"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Arithmetic::fast) + 1);
  return pick(kNames, value);
}
std::string_view name_of(Residence value) noexcept {
  static constexpr std::string_view kNames[] = {"mapped", "packed"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Residence::packed) + 1);
  return pick(kNames, value);
}
std::string_view name_of(TokenPlacement value) noexcept {
  static constexpr std::string_view kNames[] = {"sharded", "replicated"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(TokenPlacement::replicated) + 1);
  return pick(kNames, value);
}
std::string_view name_of(Finalize value) noexcept {
  static constexpr std::string_view kNames[] = {"builtin", "unfinalized", "hook"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Finalize::hook) + 1);
  return pick(kNames, value);
}
std::string_view name_of(WeightSite value) noexcept {
  static constexpr std::string_view kNames[] = {"input", "activation", "finalize", "combine"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(WeightSite::combine) + 1);
  return pick(kNames, value);
}
std::string_view name_of(ActivationKind value) noexcept {
  static constexpr std::string_view kNames[] = {"silu",        "gelu_tanh", "swiglu_oai", "swiglu_clamped",
                                                "swiglu_step", "situ",      "relu2"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ActivationKind::relu2) + 1);
  return pick(kNames, value);
}
std::string_view name_of(RouterScore value) noexcept {
  static constexpr std::string_view kNames[] = {"softmax", "sigmoid", "sqrt_softplus", "logits"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(RouterScore::logits) + 1);
  return pick(kNames, value);
}
std::string_view name_of(RouterSelection value) noexcept {
  static constexpr std::string_view kNames[] = {"top_k", "sparsemixer", "hash"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(RouterSelection::hash) + 1);
  return pick(kNames, value);
}
std::string_view name_of(GroupScore value) noexcept {
  static constexpr std::string_view kNames[] = {"max", "sum_of_two"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(GroupScore::sum_of_two) + 1);
  return pick(kNames, value);
}
std::string_view name_of(RouterNormalize value) noexcept {
  static constexpr std::string_view kNames[] = {"none", "sum", "softmax", "p_norm"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(RouterNormalize::p_norm) + 1);
  return pick(kNames, value);
}
std::string_view name_of(ZeroExpertKind value) noexcept {
  static constexpr std::string_view kNames[] = {"none", "identity", "drop"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ZeroExpertKind::drop) + 1);
  return pick(kNames, value);
}
std::string_view name_of(ScaleSite value) noexcept {
  static constexpr std::string_view kNames[] = {"weights", "routed_sum"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ScaleSite::routed_sum) + 1);
  return pick(kNames, value);
}
std::string_view name_of(GateUpOrder value) noexcept {
  static constexpr std::string_view kNames[] = {"separate", "halves", "interleaved"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(GateUpOrder::interleaved) + 1);
  return pick(kNames, value);
}
std::string_view name_of(RowRule value) noexcept {
  static constexpr std::string_view kNames[] = {"all_valid", "up_to_count", "by_index"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(RowRule::by_index) + 1);
  return pick(kNames, value);
}

}  // namespace motet
