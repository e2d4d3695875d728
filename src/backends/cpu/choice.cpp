// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/choice.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"

namespace motet {
namespace {

std::string_view router_format(DType dtype) noexcept {
  return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : dtype == DType::bf16 ? "bf16" : "";
}

std::int64_t units(const KernelSet* a, const KernelSet* b = nullptr, const KernelSet* c = nullptr) noexcept {
  std::int64_t unit = 1;
  for (const KernelSet* set : {a, b, c}) {
    if (set != nullptr) unit = std::lcm(unit, set->k_unit);
  }
  return unit;
}

std::int64_t body_bias_elements(const ProjectionSpec& gate_up, const ProjectionSpec& down, bool gated, std::int64_t intermediate,
                                std::int64_t width) noexcept {
  return (gate_up.bias ? (gated ? 2 : 1) * intermediate : 0) + (down.bias ? width : 0);
}

std::int64_t few_tokens(const KernelSet* set, bool transposed, bool invariant) noexcept {
  return set == nullptr || set->few == nullptr || transposed || invariant ? 0 : set->max_few;
}

std::string sum_order(std::string_view role, const KernelSet& set, bool transposed, std::int64_t few) {
  std::string text =
      std::string(role) + " (" + std::string(set.format) + (transposed ? ", transposed" : "") + "): fp32 in the order of ";
  text += few > 0 ? "`few` for at most " + std::to_string(few) + " tokens of an expert, else of `many`"
                  : std::string("`many`, whatever the number of tokens");
  if (set.folds) text += "; a row whose own scales cannot be folded exactly in the order of `few` there too";
  return text;
}

}  // namespace

CpuFew few_of(const CpuKernels& kernels, const LayerSpec& spec, bool invariant) noexcept {
  return {.gate_up = few_tokens(kernels.gate_up, spec.gate_up.transposed, invariant),
          .down = few_tokens(kernels.down, spec.down.transposed, invariant),
          .shared_gate_up = few_tokens(kernels.shared_gate_up, spec.shared.gate_up.transposed, invariant),
          .shared_down = few_tokens(kernels.shared_down, spec.shared.down.transposed, invariant),
          .router = few_tokens(kernels.router, false, false)};
}

std::vector<std::string> sum_orders(const CpuKernels& kernels, const LayerSpec& spec, bool invariant) {
  const CpuFew few = few_of(kernels, spec, invariant);
  const struct {
    std::string_view role;
    const KernelSet* set;
    bool transposed;
    std::int64_t few;
  } projections[] = {{"gate_up", kernels.gate_up, spec.gate_up.transposed, few.gate_up},
                     {"down", kernels.down, spec.down.transposed, few.down},
                     {"shared gate_up", kernels.shared_gate_up, spec.shared.gate_up.transposed, few.shared_gate_up},
                     {"shared down", kernels.shared_down, spec.shared.down.transposed, few.shared_down},
                     {"latent_in", kernels.latent_in, spec.latent_in.transposed, 0},
                     {"latent_out", kernels.latent_out, spec.latent_out.transposed, 0}};
  std::vector<std::string> out;
  for (const auto& each : projections)
    if (each.set != nullptr) out.push_back(sum_order(each.role, *each.set, each.transposed, each.few));
  out.push_back("router (" + std::string(kernels.router->format) + "): fp32 from the values as given, in the order of " +
                (few.router > 0 ? "`few`" : "`many`") + ", whatever the number of tokens");
  out.push_back("`few` and `many`: an order never depends on rows, threads or place in the batch");
  return out;
}

CpuChoice kernels_for(const LayerSpec& spec, std::string_view target, KernelArithmetic arithmetic) {
  const bool shared = spec.shared.intermediate > 0, latent = spec.latent > 0;
  CpuKernels kernels;
  kernels.arithmetic = arithmetic;
  const std::string router(router_format(spec.router.weight_dtype));
  const struct {
    std::string_view role, format;
    const KernelSet** set;
    bool used;
    KernelArithmetic arithmetic;
  } parts[] = {{"gate_up", spec.gate_up.format, &kernels.gate_up, true, arithmetic},
               {"down", spec.down.format, &kernels.down, true, arithmetic},
               {"shared.gate_up", spec.shared.gate_up.format, &kernels.shared_gate_up, shared, arithmetic},
               {"shared.down", spec.shared.down.format, &kernels.shared_down, shared, arithmetic},
               {"latent_in", spec.latent_in.format, &kernels.latent_in, latent, arithmetic},
               {"latent_out", spec.latent_out.format, &kernels.latent_out, latent, arithmetic},
               {"router", router, &kernels.router, true, KernelArithmetic::f32}};
  CpuChoice choice;
  for (const auto& part : parts) {
    if (!part.used) continue;
    *part.set = find_kernels(part.format, target, part.arithmetic);
    if (*part.set != nullptr) continue;
    const std::string given = std::string(part.role) + " in '" + std::string(part.format) + "'";
    choice.reason = given + " has no " + std::string(name_of(part.arithmetic)) + " kernels at " + std::string(target);
    choice.refusal = Refusal{"format_not_built", "every projection needs kernels for its format, target and arithmetic",
                             given + ", target '" + std::string(target) + "', arithmetic " + std::string(name_of(part.arithmetic)),
                             "a format of `motet list formats` at this target, or backend reference"};
    return choice;
  }
  choice.kernels = kernels;
  return choice;
}

CpuChoice choose_kernels(const LayerSpec& spec, const Deployment& deployment, const Environment& environment,
                         std::string_view target) {
  const Wishes& wishes = deployment.wishes;
  if (wishes.arithmetic == Arithmetic::exact) {
    CpuChoice choice = kernels_for(spec, target, KernelArithmetic::f32);
    if (choice.kernels) choice.reason = "f32: arithmetic exact was wished for";
    return choice;
  }
  CpuChoice last;
  std::string declined;
  for (const std::string& ranked : environment.arithmetic_ranking) {
    for (const KernelArithmetic arithmetic : {KernelArithmetic::f32, KernelArithmetic::bf16_dot}) {
      if (name_of(arithmetic) != ranked) continue;
      last = kernels_for(spec, target, arithmetic);
      if (last.kernels) {
        last.reason =
            ranked + ": first of this processor's ranking" + (declined.empty() ? "" : " that every projection has; " + declined);
        return last;
      }
      declined += (declined.empty() ? "" : "; ") + last.reason;
    }
  }
  if (!last.refusal) {
    last.refusal = Refusal{"arithmetic_not_built", "the environment's ranking must name a kernel arithmetic",
                           std::to_string(environment.arithmetic_ranking.size()) + " entries, none of them f32 or bf16_dot",
                           "f32 or bf16_dot in the ranking"};
  }
  return last;
}

CpuWidths cpu_widths(const CpuKernels& kernels, const LayerSpec& spec, const CpuExtents& extents) {
  CpuWidths out;
  const bool latent = spec.latent > 0;
  out.hidden = round_up(spec.hidden, units(latent ? nullptr : kernels.gate_up, kernels.shared_gate_up, kernels.latent_in));
  if (latent) out.latent = round_up(spec.latent, units(kernels.gate_up, kernels.latent_out));
  out.intermediate = round_up(extents.intermediate, units(kernels.down));
  if (kernels.shared_down != nullptr) out.shared_intermediate = round_up(extents.shared_intermediate, units(kernels.shared_down));
  return out;
}

CpuScratch cpu_scratch(const CpuKernels& kernels, const LayerSpec& spec, const CpuExtents& extents) {
  const struct {
    const KernelSet* set;
    std::int64_t cols;
  } reductions[] = {{kernels.gate_up, spec.dispatch_width()},
                    {kernels.down, extents.intermediate},
                    {kernels.shared_gate_up, spec.hidden},
                    {kernels.shared_down, extents.shared_intermediate},
                    {kernels.latent_in, spec.hidden},
                    {kernels.latent_out, spec.latent},
                    {kernels.router, spec.hidden}};
  CpuScratch out;
  for (const auto& reduction : reductions) {
    if (reduction.set != nullptr) out.kernel = std::max(out.kernel, reduction.set->scratch_bytes(reduction.cols));
  }
  out.kernel = round_up(out.kernel, 64);
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  out.router_stride = round_up(round_up(spec.hidden, kernels.router->k_unit) * kFloat, 64);
  out.tiles =
      std::max(2 * kTileElements * kFloat, std::max<std::int64_t>(kernels.router->max_few, kRouterManyTokens) * out.router_stride);
  return out;
}

std::int64_t bias_elements(const LayerSpec& spec, const CpuExtents& extents) noexcept {
  std::int64_t out = extents.experts * body_bias_elements(spec.gate_up, spec.down, spec.activation.gated, extents.intermediate,
                                                          spec.dispatch_width());
  if (spec.shared.intermediate > 0)
    out += body_bias_elements(spec.shared.gate_up, spec.shared.down, spec.shared.activation.gated, extents.shared_intermediate,
                              spec.hidden);
  return out;
}

std::int64_t cpu_prepared_bytes(const LayerSpec& spec, const CpuExtents& extents) noexcept {
  return bias_elements(spec, extents) * static_cast<std::int64_t>(sizeof(float)) +
         extents.experts * static_cast<std::int64_t>(sizeof(std::int32_t));
}

}  // namespace motet
