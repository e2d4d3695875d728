// SPDX-License-Identifier: Apache-2.0
#include "plan/recipe.h"

#include <algorithm>
#include <cmath>

namespace motet {
namespace {

std::string finalize_order(const Draft& draft) {
  if (draft.unfinalized()) return "finalize: none, the caller gets the rows";
  if (draft.deployment.wishes.finalize == Finalize::hook)
    return "finalize: the hook makes t of each row and applies the weight, s = fp32(s + t), k ascending, no contraction";
  if (draft.strategy != nullptr && draft.strategy->weight_site == WeightSite::combine)
    return "finalize: none, rows of experts go back as they are";
  if (draft.weight_on_input()) return "finalize: s = fp32(s + y), k ascending, no contraction; the weight is already on the input";
  return "finalize: t = fp32(w*y), s = fp32(s + t), k ascending, no contraction";
}

std::string combine_order(const Draft& draft) {
  const std::string wire = "rows come as " + std::string(name_of(draft.wire));
  switch (draft.strategy->unit) {
    case RowUnit::none:
      return "sum over ranks: s = fp32(s + y), ranks ascending from s = 0; " + wire;
    case RowUnit::whole_batch:
    case RowUnit::token_rank:
      return "combine: s = fp32(s + y) over the ranks of a token, ascending from s = 0; " + wire;
    case RowUnit::token_expert:
      return std::string("combine: ") +
             (draft.strategy->weight_site == WeightSite::combine ? "t = fp32(w*y), s = fp32(s + t)" : "s = fp32(s + y)") +
             ", k ascending from s = 0" + (draft.deployment.tp > 1 ? ", ranks of one k ascending; " : "; ") + wire;
  }
  return "";
}

}  // namespace

double error_bound_of(Arithmetic level, std::string_view kernel_arithmetic) noexcept {
  if (kernel_arithmetic == "double") return 2e-6;  // routing, weighing and sums are still fp32
  return level == Arithmetic::exact ? 2e-4 : level == Arithmetic::bf16 ? 4e-3 : 1.5e-2;
}

double quantised_error_bound(double step) noexcept { return std::sqrt(5.0 / 3) * step; }

Recipe make_recipe(const Draft& draft, Arithmetic wished) {
  Recipe recipe;
  recipe.wished = wished;
  recipe.arithmetic = draft.storage.arithmetic;
  recipe.activation = draft.storage.activation;
  recipe.weight_site = draft.spec.router.weight_site;
  if (draft.strategy != nullptr) {
    recipe.wire = draft.wire;
    if (draft.strategy->weight_site == WeightSite::combine) recipe.weight_site = WeightSite::combine;
  }
  recipe.sum_order = draft.storage.sum_order;
  recipe.rounding_points = draft.storage.rounding_points;
  recipe.error_bound = draft.storage.quantised.group > 0
                           ? quantised_error_bound(draft.storage.quantised.step)
                           : error_bound_of(draft.deployment.wishes.arithmetic, draft.storage.arithmetic);
  // A level leaves room for a bf16 wire; double precision does not, and what comes back is then no better than its rounding.
  if (draft.strategy != nullptr && draft.wire == DType::bf16) recipe.error_bound = std::max(recipe.error_bound, 0x1p-8);
  recipe.sum_order.push_back(finalize_order(draft));
  if (draft.strategy != nullptr) {
    recipe.sum_order.push_back(combine_order(draft));
    if (draft.wire != DType::f32)
      recipe.rounding_points.push_back("wire: each row that comes back once to " + std::string(name_of(draft.wire)));
  }
  if (draft.weight_on_input())
    recipe.rounding_points.push_back("input: x*w in fp32, then once to " + std::string(name_of(recipe.activation)));
  if (draft.unfinalized()) return recipe;
  if (draft.has_latent() && draft.spec.latent_norm)
    recipe.sum_order.push_back("latent_norm: mean of squares in fp32, elements ascending");
  if (draft.has_latent())
    recipe.rounding_points.push_back("latent_out: the routed sum once to " + std::string(name_of(recipe.activation)));
  if (draft.has_shared() && draft.spec.shared.gate)
    recipe.sum_order.push_back("shared gate: gate . x in fp32, sixteen partial sums over i mod 16, then ascending");
  if (draft.has_shared() || draft.adds_zero_experts())
    recipe.sum_order.push_back("tail: addends in fp32, in the order of the tail");
  recipe.rounding_points.push_back("output: once to " + std::string(name_of(draft.deployment.input)));
  return recipe;
}

}  // namespace motet
