// SPDX-License-Identifier: Apache-2.0
#include "plan/spec_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "base/text.h"
#include "plan/refusals.h"
#include "plan/sizes.h"

namespace motet {
namespace {

using std::int64_t;
using std::to_string;
using Refusals = std::vector<Refusal>;

struct NamedValue {
  std::string_view name;
  int64_t value;
};
struct NamedNumber {
  std::string_view name;
  double value;
};

std::string named(std::string_view name, int64_t value) { return std::string(name) + " " + to_string(value); }

void need_at_least(Refusals& out, const NamedValue& given, int64_t least) {
  if (given.value < least)
    out.push_back({"extent_not_positive", std::string(given.name) + " must be at least " + to_string(least), to_string(given.value),
                   ">= " + to_string(least)});
}

void check_extents(const LayerSpec& spec, const Deployment& deployment, Refusals& out) {
  for (const NamedValue& extent : {NamedValue{"hidden", spec.hidden},
                                   {"intermediate", spec.intermediate},
                                   {"experts", spec.experts},
                                   {"top_k", spec.top_k},
                                   {"tokens", deployment.tokens},
                                   {"router groups", spec.router.groups},
                                   {"router groups kept", spec.router.groups_kept}})
    need_at_least(out, extent, 1);
  for (const NamedValue& extent : {NamedValue{"latent", spec.latent},
                                   {"shared intermediate", spec.shared.intermediate},
                                   {"zero experts", spec.router.zero_experts},
                                   {"chunk tokens", deployment.chunk_tokens},
                                   {"layer", spec.layer}})
    need_at_least(out, extent, 0);
  if (deployment.tp < 1 || deployment.ep < 1)
    out.push_back(
        {"parallel_degree", "tp and ep count ranks", named("tp", deployment.tp) + ", " + named("ep", deployment.ep), ">= 1 each"});
  else if (bounded_product({deployment.tp, deployment.ep}) > kMaxRanks)
    out.push_back({"ranks_too_many", "a plan holds a slice for each rank",
                   named("tp", deployment.tp) + " x " + named("ep", deployment.ep), "at most " + to_string(kMaxRanks) + " ranks"});
}

/// Each size with a factor of 32 over its elements: 8 bytes, two halves, and twice the extent for any backend's padding.
void check_sizes(const LayerSpec& spec, const Deployment& deployment, Refusals& out) {
  struct Size {
    std::string_view name;
    int64_t value;
  };
  const int64_t scored = std::min(spec.experts, kLargestSize) + std::min(spec.router.zero_experts, kLargestSize);
  const bool all_to_one = deployment.placement == TokenPlacement::sharded;  // every rank's tokens may need the experts of one
  const int64_t tokens = deployment.at_once();
  const int64_t rows = bounded_product({tokens, spec.top_k, all_to_one ? bounded_product({deployment.tp, deployment.ep}) : 1});
  constexpr int64_t kIds = std::numeric_limits<std::int32_t>::max();
  if (rows > kIds)
    out.push_back({"too_many_rows", "rows that run at once are numbered in 32 bits",
                   named("tokens", tokens) + " x " + named("top_k", spec.top_k), "tokens * top_k <= " + to_string(kIds)});
  if (scored > kIds)
    out.push_back({"too_many_experts", "experts are numbered in 32 bits",
                   named("experts", spec.experts) + " + " + named("zero experts", spec.router.zero_experts),
                   "at most " + to_string(kIds)});
  const Size sizes[] = {
      {"expert weights (experts x hidden or latent x intermediate)",
       bounded_product({spec.experts, spec.dispatch_width(), spec.intermediate, 32})},
      {"shared expert weights (hidden x shared intermediate)", bounded_product({spec.hidden, spec.shared.intermediate, 32})},
      {"router weights (hidden x experts)", bounded_product({spec.hidden, scored, 32})},
      {"latent projections (hidden x latent)", bounded_product({spec.hidden, spec.latent, 32})},
      {"rows of hidden states (tokens x top_k x hidden)", bounded_product({rows, std::max(spec.hidden, spec.latent), 32})},
      {"intermediate rows (tokens x top_k x intermediate)", bounded_product({rows, spec.intermediate, 32})},
      {"logits (tokens x experts)", bounded_product({tokens, scored, 32})},
      {"shared rows (tokens x shared intermediate)", bounded_product({tokens, spec.shared.intermediate, 32})}};
  for (const Size& size : sizes)
    if (size.value > kLargestSize)
      out.push_back({"too_large", std::string(size.name) + " must be addressable",
                     named("hidden", spec.hidden) + ", " + named("latent", spec.latent) + ", " +
                         named("intermediate", spec.intermediate) + ", " + named("experts", spec.experts) + ", " +
                         named("top_k", spec.top_k) + ", " + named("tokens", deployment.tokens),
                     "at most 2^51 elements"});
}

void check_activation(std::string_view whose, const Activation& activation, Refusals& out) {
  const std::string kind(name_of(activation.kind));
  for (const NamedNumber& number :
       {NamedNumber{"alpha", activation.alpha}, {"limit", activation.limit}, {"offset", activation.offset}})
    if (!std::isfinite(number.value))
      out.push_back({"not_finite", std::string(whose) + " activation " + std::string(number.name) + " must be a number",
                     to_string(number.value), "a finite number"});
  const bool may_lack_gate = activation.kind == ActivationKind::silu || activation.kind == ActivationKind::gelu_tanh ||
                             activation.kind == ActivationKind::relu2;
  if (activation.gated ? activation.kind == ActivationKind::relu2 : !may_lack_gate)
    out.push_back({"activation_gate",
                   std::string(whose) + " activation " + kind + (activation.gated ? " reads up alone" : " reads gate and up"),
                   activation.gated ? "a gate" : "no gate", activation.gated ? "gated = false" : "gated = true"});
  if (activation.kind == ActivationKind::relu2 && (activation.alpha != 0 || activation.limit != 0 || activation.offset != 0))
    out.push_back({"activation_limits", std::string(whose) + " activation relu2 has no alpha, limit or offset",
                   format_text("alpha %g, limit %g, offset %g", activation.alpha, activation.limit, activation.offset), "0 each"});
  const bool divides = activation.kind == ActivationKind::situ;
  if (activation.limit < 0 || (divides && !(activation.alpha > 0 && activation.limit > 0)))
    out.push_back({"activation_limits",
                   std::string(whose) + " activation " + kind + (divides ? " divides by alpha and limit" : " clamps at limit"),
                   format_text("alpha %g, limit %g", activation.alpha, activation.limit), divides ? "> 0 each" : "limit >= 0"});
}

/// `reduction` is the extent that codes run along.
void check_projection(std::string_view whose, const ProjectionSpec& projection, int64_t reduction, const Catalog& catalog,
                      Refusals& out) {
  const FormatFacts* format = catalog.format(projection.format);
  if (format == nullptr) {
    std::vector<std::string> known;
    for (const FormatFacts& facts : catalog.formats) known.emplace_back(facts.name);
    out.push_back({"format_unknown", std::string(whose) + " weights must be of a format this build knows",
                   quoted(projection.format), join(known)});
    return;
  }
  // A block of codes has the block of its scale, and an axis without blocks stays so; other scale grids are the checkpoint's
  // choice.
  const auto fits = [&](int64_t given, int64_t usual) {
    return format->values_per_block > 1 || usual == 1 ? given == usual : given >= 0;
  };
  if (!fits(projection.block_rows, format->block_rows) || !fits(projection.block_cols, format->block_cols))
    out.push_back({"block_size", std::string(whose) + ": a scale of " + projection.format + " covers a block of its own size",
                   to_string(projection.block_rows) + " x " + to_string(projection.block_cols),
                   to_string(format->block_rows) + " x " + to_string(format->block_cols)});
  if (reduction % format->values_per_block != 0)
    out.push_back({"reduction_not_whole",
                   std::string(whose) + ": " + projection.format + " codes along the reduction axis come in whole blocks",
                   to_string(reduction), "a multiple of " + to_string(format->values_per_block)});
}

void check_projections(const LayerSpec& spec, const Catalog& catalog, Refusals& out) {
  check_projection("gate_up", spec.gate_up, spec.dispatch_width(), catalog, out);
  check_projection("down", spec.down, spec.intermediate, catalog, out);
  if (spec.shared.intermediate > 0) {
    check_projection("shared gate_up", spec.shared.gate_up, spec.hidden, catalog, out);
    check_projection("shared down", spec.shared.down, spec.shared.intermediate, catalog, out);
    check_activation("shared", spec.shared.activation, out);
  } else if (spec.shared.gate) {
    out.push_back(
        {"shared_projection", "a shared gate belongs to a shared expert", "shared intermediate 0", "shared intermediate > 0"});
  }
  if (spec.latent > 0) {
    check_projection("latent_in", spec.latent_in, spec.hidden, catalog, out);
    check_projection("latent_out", spec.latent_out, spec.latent, catalog, out);
    for (const ProjectionSpec* projection : {&spec.latent_in, &spec.latent_out})
      if (projection->bias) out.push_back({"latent_projection", "latent projections have no bias", "a bias", "bias = false"});
  } else if (spec.latent_norm) {
    out.push_back({"latent_projection", "a latent norm belongs to a latent layer", "latent 0", "latent > 0"});
  }
}

void check_groups(const LayerSpec& spec, Refusals& out) {
  const RouterSpec& router = spec.router;
  if (spec.experts % router.groups != 0) {
    out.push_back(
        {"groups", "groups must divide experts", named("groups", router.groups), "a divisor of " + to_string(spec.experts)});
    return;
  }
  const int64_t group = spec.experts / router.groups;
  if (router.groups_kept > router.groups)
    out.push_back(
        {"groups_kept", "no more groups are kept than there are", to_string(router.groups_kept), "<= " + to_string(router.groups)});
  else if (router.groups > 1 && spec.top_k > router.groups_kept * group)
    out.push_back({"top_k_exceeds_groups", "the kept groups must hold top_k experts",
                   named("top_k", spec.top_k) + ", " + to_string(router.groups_kept) + " groups of " + to_string(group),
                   "top_k <= " + to_string(router.groups_kept * group)});
  if (router.groups > 1 && router.group_score == GroupScore::sum_of_two && group < 2)
    out.push_back({"group_too_small", "a group scored by its best two experts has two", "groups of " + to_string(group),
                   "at least 2 experts a group"});
  if (router.groups > 1 && (router.zero_experts > 0 || router.selection != RouterSelection::top_k))
    out.push_back(
        {"groups", "groups go with top_k selection and without zero experts", named("groups", router.groups), "groups 1"});
}

void check_router(const LayerSpec& spec, Refusals& out) {
  const RouterSpec& router = spec.router;
  if (spec.top_k > spec.experts + router.zero_experts)
    out.push_back({"top_k_exceeds_experts", "a token names each expert at most once", named("top_k", spec.top_k),
                   "top_k <= " + to_string(spec.experts + router.zero_experts)});
  check_groups(spec, out);
  if (router.selection == RouterSelection::sparsemixer && spec.top_k != 2)
    out.push_back({"sparsemixer_top_k", "sparsemixer chooses two experts", named("top_k", spec.top_k), "top_k 2"});
  if ((router.zero_experts > 0) != (router.zero_expert_kind != ZeroExpertKind::none))
    out.push_back({"zero_expert_kind", "zero experts and their kind go together", named("zero experts", router.zero_experts),
                   router.zero_experts > 0 ? "kind identity or drop" : "kind none"});
  if (router.zero_experts > 0 && router.scale_site == ScaleSite::routed_sum && router.scale != 1)
    out.push_back({"zero_expert_scale", "zero experts take the scale through their weights", "scale on the routed sum",
                   "scale_site = weights"});
  if (router.weight_site == WeightSite::input && spec.top_k > 1 && !router.sigmoid_weight)
    out.push_back({"weight_on_input_top_k",
                   "a weight on the input goes with top_k 1 unless it is a sigmoid of each expert's own logit",
                   named("top_k", spec.top_k), "top_k 1, or sigmoid_weight"});
  if (router.weight_site == WeightSite::activation || router.weight_site == WeightSite::combine)
    out.push_back({"weight_site_not_built", "the routing weight is applied on the input or in finalize",
                   std::string(name_of(router.weight_site)), "input or finalize"});
  for (const NamedNumber& number : {NamedNumber{"scale", router.scale},
                                    {"normalize_epsilon", router.normalize_epsilon},
                                    {"normalize_floor", router.normalize_floor},
                                    {"soft_cap", router.soft_cap},
                                    {"jitter", router.jitter},
                                    {"normalize_power", router.normalize_power},
                                    {"latent_norm_epsilon", spec.latent_norm_epsilon}})
    if (!(number.value >= 0 && number.value <= std::numeric_limits<float>::max()))
      out.push_back({"router_range", "router " + std::string(number.name) + " must be a number of fp32 that is not negative",
                     format_text("%g", number.value), "0 to 3.4e38"});
  if (router.normalize == RouterNormalize::p_norm && !(router.normalize_power > 0))
    out.push_back({"router_range", "a p-norm has a positive power", format_text("%g", router.normalize_power), "> 0"});
  if (router.weight_dtype != DType::f32 && router.weight_dtype != DType::bf16 && router.weight_dtype != DType::f16)
    out.push_back({"router_dtype_not_built", "router weights are F32, BF16 or F16", std::string(name_of(router.weight_dtype)),
                   "F32, BF16 or F16"});
}

void check_deployment(const Deployment& deployment, Refusals& out) {
  if (deployment.input != DType::bf16 && deployment.input != DType::f16 && deployment.input != DType::f32)
    out.push_back(
        {"input_dtype", "hidden states are BF16, F16 or F32", std::string(name_of(deployment.input)), "BF16, F16 or F32"});
  if (deployment.wishes.threads < 0)
    out.push_back(
        {"threads", "threads count processors; 0 = all this process may use", to_string(deployment.wishes.threads), ">= 0"});
  if (deployment.memory_limit < 0)
    out.push_back(
        {"memory_limit", "the memory limit counts bytes; 0 = what the machine has", to_string(deployment.memory_limit), ">= 0"});
  const Wishes& wishes = deployment.wishes;
  if (name_of(wishes.arithmetic) == "?" || name_of(wishes.residence) == "?" || name_of(wishes.finalize) == "?" ||
      name_of(deployment.placement) == "?")
    out.push_back({"wish_out_of_range", "a wish is one of its enumerators", "a number outside the enumeration",
                   "an enumerator of motet/spec.h"});
}

}  // namespace

std::vector<Refusal> check_inputs(const LayerSpec& spec, const Deployment& deployment, const Catalog& catalog) {
  Refusals out;
  check_deployment(deployment, out);
  check_extents(spec, deployment, out);
  if (!out.empty()) return out;  // every later rule divides or multiplies extents
  if (deployment.tp * deployment.ep > 1 && catalog.fabric(deployment.fabric) == nullptr) {
    std::vector<std::string> known;
    for (const FabricTraits& fabric : catalog.fabrics) known.emplace_back(fabric.name);
    out.push_back(
        {"fabric_unknown", "a fabric must be one that this build has", quoted(deployment.fabric), "one of: " + join(known)});
  }
  check_sizes(spec, deployment, out);
  if (!out.empty()) return out;
  check_activation("routed", spec.activation, out);
  check_projections(spec, catalog, out);
  check_router(spec, out);
  return out;
}

}  // namespace motet
