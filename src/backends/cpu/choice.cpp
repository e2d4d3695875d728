// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/math.h"
#include "formats/format.h"
#include "formats/packed.h"
#include "plan/refusals.h"

namespace motet {
namespace {

std::string_view router_format(DType dtype) noexcept {
  return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : dtype == DType::bf16 ? "bf16" : "";
}

std::int64_t units(std::initializer_list<const CpuProjection*> projections) noexcept {
  std::int64_t unit = 1;
  for (const CpuProjection* projection : projections) {
    for (const KernelSet* set : {projection->few, projection->many})
      if (set != nullptr) unit = std::lcm(unit, set->k_unit);
  }
  return unit;
}

std::int64_t body_bias_elements(const ProjectionSpec& gate_up, const ProjectionSpec& down, bool gated, std::int64_t intermediate,
                                std::int64_t width) noexcept {
  return (gate_up.bias ? (gated ? 2 : 1) * intermediate : 0) + (down.bias ? width : 0);
}

/// A projection of the layer and where its kernels go.
struct Part {
  std::string_view role;
  const ProjectionSpec* projection = nullptr;
  bool of_expert = true;  ///< routed or shared: may run `few` and be packed
  CpuProjection CpuKernels::*kernels = nullptr;
  std::string_view format() const noexcept { return projection->format; }
};

std::vector<Part> parts_of(const LayerSpec& spec) {
  std::vector<Part> parts = {{"gate_up", &spec.gate_up, true, &CpuKernels::gate_up}, {"down", &spec.down, true, &CpuKernels::down}};
  if (spec.shared.intermediate > 0) {
    parts.push_back({"shared gate_up", &spec.shared.gate_up, true, &CpuKernels::shared_gate_up});
    parts.push_back({"shared down", &spec.shared.down, true, &CpuKernels::shared_down});
  }
  if (spec.latent > 0) {
    parts.push_back({"latent_in", &spec.latent_in, false, &CpuKernels::latent_in});
    parts.push_back({"latent_out", &spec.latent_out, false, &CpuKernels::latent_out});
  }
  return parts;
}

/// Whether an arithmetic keeps a level's promise.
bool keeps(KernelArithmetic arithmetic, Arithmetic level) noexcept {
  switch (arithmetic) {
    case KernelArithmetic::f32:
    case KernelArithmetic::bf16x2_tile:
    case KernelArithmetic::int16_dot:
      return true;
    case KernelArithmetic::bf16_dot:
    case KernelArithmetic::bf16_tile:
      return level != Arithmetic::exact;
    case KernelArithmetic::int8_dot:
      return level == Arithmetic::fast;
  }
  return false;
}

/// What a projection may run.
struct Question {
  const Environment& environment;
  std::string_view target;
  const Wishes& wishes;
};

bool packs(const Question& question, const Part& part) noexcept {
  return part.of_expert && question.wishes.residence == Residence::packed;
}

/// The first set of a ranking that keeps the level and for which `fits` holds, or null.
template <class Fits>
const KernelSet* first_of(const std::vector<std::string>& ranking, const Question& question, std::string_view format, Fits fits) {
  for (const std::string& name : ranking) {
    const KernelArithmetic* arithmetic = arithmetic_named(name);
    if (arithmetic == nullptr || !keeps(*arithmetic, question.wishes.arithmetic)) continue;
    const KernelSet* set = find_kernels(format, question.target, *arithmetic);
    if (set != nullptr && fits(*set)) return set;
  }
  return nullptr;
}

const KernelSet* many_of(const Question& question, const Part& part, DType x) {
  return first_of(question.environment.arithmetic_ranking, question, part.format(),
                  [=](const KernelSet& set) { return set.many_takes(x); });
}

/// Tokens up to which `few` is not slower than this `many`, whatever `few` it is.
/// Evidence (gpt-oss-20b in MXFP4, two cores of a Granite Rapids, December 2026, tokens of an expert: int16_dot against bf16_tile):
/// mapped 4: 29.5 against 41.0 ms, 8: 45.9 against 43.6; packed 2: 20.6 against 25.9, 4: 31.5 against 30.4, 8: 50 against 33.
std::int64_t few_beside(const KernelSet& many, bool packed) noexcept {
  const bool tiles = many.arithmetic == KernelArithmetic::bf16_tile || many.arithmetic == KernelArithmetic::bf16x2_tile;
  if (!tiles) return std::numeric_limits<std::int64_t>::max();
  return packed ? 3 : 7;
}

CpuProjection projection_of(const Question& question, const Part& part, DType x) {
  CpuProjection out;
  const bool packed = packs(question, part);
  out.many = many_of(question, part, x);
  if (out.many == nullptr || !part.of_expert || question.wishes.invariant) return out;
  if (part.projection->transposed && !packed) return out;
  out.few =
      first_of(question.environment.few_ranking, question, part.format(), [](const KernelSet& set) { return set.few != nullptr; });
  if (out.few != nullptr) out.max_few = std::min<std::int64_t>(out.few->max_few, few_beside(*out.many, packed));
  return out;
}

/// bf16 when the best arithmetic of the routed experts reads it and every projection has one that takes it.
DType prepared_type(const Question& question, const std::vector<Part>& parts) {
  const KernelSet* best = first_of(question.environment.arithmetic_ranking, question, parts.front().format(),
                                   [](const KernelSet& set) { return set.many != nullptr; });
  if (best == nullptr || best->activation != DType::bf16) return DType::f32;
  for (const Part& part : parts)
    if (many_of(question, part, DType::bf16) == nullptr) return DType::f32;
  return DType::bf16;
}

std::string sum_order(const Part& part, const CpuProjection& projection) {
  std::string text =
      std::string(part.role) + " (" + std::string(part.format()) + (part.projection->transposed ? ", transposed" : "") + "): fp32 ";
  const std::string many = std::string(name_of(projection.many->arithmetic));
  if (projection.max_few > 0) {
    text += "in the order of `few` (" + std::string(name_of(projection.few->arithmetic)) + ") for at most " +
            std::to_string(projection.max_few) + " tokens of an expert, else of `many` (" + many + ")";
  } else {
    text += "in the order of `many` (" + many + "), whatever the number of tokens";
  }
  if (projection.many->folds) text += "; a row whose own scales cannot be folded exactly in the order of `few` there too";
  return text;
}

std::string_view encoding_of(KernelArithmetic arithmetic) noexcept {
  switch (arithmetic) {
    case KernelArithmetic::bf16x2_tile:
      return "bf16x2_tile: activations to two bf16, high and low part, in the kernel";
    case KernelArithmetic::int16_dot:
      return "int16_dot: activations to 16-bit integers with one scale per 32, in the kernel";
    case KernelArithmetic::int8_dot:
      return "int8_dot: activations to 8-bit integers with one scale per 32, in the kernel";
    default:
      return "";
  }
}

}  // namespace

std::string CpuKernels::arithmetic() const {
  MOTET_CHECK(gate_up.many != nullptr);
  std::string many(name_of(gate_up.many->arithmetic));
  if (gate_up.max_few == 0 || gate_up.few->arithmetic == gate_up.many->arithmetic) return many;
  return std::string(name_of(gate_up.few->arithmetic)) + " for few tokens, " + many + " for many";
}

std::vector<std::string> sum_orders(const CpuKernels& kernels, const LayerSpec& spec) {
  std::vector<std::string> out;
  for (const Part& part : parts_of(spec)) out.push_back(sum_order(part, kernels.*part.kernels));
  out.push_back("router (" + std::string(kernels.router.many->format) + "): fp32 from the values as given, in the order of " +
                (kernels.router.max_few > 0 ? "`few`" : "`many`") + ", whatever the number of tokens");
  out.push_back("`few` and `many`: an order never depends on rows, threads or place in the batch");
  return out;
}

std::vector<std::string> encodings(const CpuKernels& kernels) {
  std::vector<std::string> out;
  for (const CpuProjection* projection :
       {&kernels.gate_up, &kernels.down, &kernels.shared_gate_up, &kernels.shared_down, &kernels.latent_in, &kernels.latent_out}) {
    for (const KernelSet* set : {projection->max_few > 0 ? projection->few : nullptr, projection->many}) {
      if (set == nullptr) continue;
      const std::string text(encoding_of(set->arithmetic));
      if (!text.empty() && std::find(out.begin(), out.end(), text) == out.end()) out.push_back(text);
    }
  }
  return out;
}

CpuChoice choose_kernels(const LayerSpec& spec, const Deployment& deployment, const Environment& environment,
                         std::string_view target) {
  const Wishes& wishes = deployment.wishes;
  const Question question{environment, target, wishes};
  const std::vector<Part> parts = parts_of(spec);
  CpuKernels kernels;
  kernels.activation = prepared_type(question, parts);
  CpuChoice choice;
  const auto refuse = [&](std::string_view role, std::string_view format) {
    const std::string given = std::string(role) + " in '" + std::string(format) + "'";
    choice.reason = given + " has no kernels at " + std::string(target);
    choice.refusal = Refusal{"format_not_built", "every projection needs kernels for its format, target and level of accuracy",
                             given + ", target '" + std::string(target) + "', level " + std::string(name_of(wishes.arithmetic)) +
                                 ", ranked arithmetics " +
                                 (environment.arithmetic_ranking.empty() ? "none" : join(environment.arithmetic_ranking)),
                             "a format of `motet list formats` at this target, or backend reference"};
    return choice;
  };
  for (const Part& part : parts) {
    kernels.*part.kernels = projection_of(question, part, kernels.activation);
    if (!(kernels.*part.kernels).exists()) return refuse(part.role, part.format());
    if (!packs(question, part)) continue;
    if (const auto declined = packing_declined(find_format(part.format())->facts, *part.projection)) {
      choice.refusal =
          Refusal{"not_packable", "scale blocks of packed weights must hold whole panels",
                  std::string(part.role) + " in '" + std::string(part.format()) + "': " + *declined, "residence mapped"};
      return choice;
    }
  }
  const std::string router(router_format(spec.router.weight_dtype));
  const KernelSet* set = find_kernels(router, target, KernelArithmetic::f32);
  if (set == nullptr) return refuse("router", router);
  kernels.router = {set, set, set->few == nullptr ? 0 : set->max_few};
  choice.reason = kernels.arithmetic() + ": first of this processor's rankings at level " + std::string(name_of(wishes.arithmetic));
  choice.kernels = kernels;
  return choice;
}

CpuWidths cpu_widths(const CpuKernels& kernels, const LayerSpec& spec, const CpuExtents& extents) {
  CpuWidths out;
  const bool latent = spec.latent > 0;
  const CpuProjection none;
  out.hidden = round_up(spec.hidden, units({latent ? &none : &kernels.gate_up, &kernels.shared_gate_up, &kernels.latent_in}));
  if (latent) out.latent = round_up(spec.latent, units({&kernels.gate_up, &kernels.latent_out}));
  out.intermediate = round_up(extents.intermediate, units({&kernels.down}));
  if (kernels.shared_down.exists()) out.shared_intermediate = round_up(extents.shared_intermediate, units({&kernels.shared_down}));
  return out;
}

CpuScratch cpu_scratch(const CpuKernels& kernels, const LayerSpec& spec, const CpuExtents& extents) {
  const struct {
    const CpuProjection& projection;
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
    for (const KernelSet* set : {reduction.projection.few, reduction.projection.many})
      if (set != nullptr) out.kernel = std::max(out.kernel, set->scratch_bytes(reduction.cols));
  }
  out.kernel = round_up(out.kernel, 64);
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  out.router_stride = round_up(round_up(spec.hidden, kernels.router.many->k_unit) * kFloat, 64);
  out.tiles = std::max(2 * kTileElements * kFloat, std::max(kernels.router.max_few, kRouterManyTokens) * out.router_stride);
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

CpuPacked cpu_packed(const LayerSpec& spec, const CpuExtents& extents, Residence residence) noexcept {
  CpuPacked out;
  if (residence != Residence::packed) return out;
  const auto add = [&](const ProjectionSpec& projection, std::int64_t count, std::int64_t rows, std::int64_t cols) {
    const FormatFacts& facts = find_format(projection.format)->facts;
    const std::int64_t bytes = packed_bytes(facts, projection, rows, cols);
    out.bytes += count * bytes;
    out.padding += count * (bytes - published_bytes(facts, projection, rows, cols));
  };
  const auto add_body = [&](const ProjectionSpec& gate_up, const ProjectionSpec& down, bool gated, std::int64_t experts,
                            std::int64_t intermediate, std::int64_t width) {
    add(gate_up, experts * (gated ? 2 : 1), intermediate, width);
    add(down, experts, width, intermediate);
  };
  add_body(spec.gate_up, spec.down, spec.activation.gated, extents.experts, extents.intermediate, spec.dispatch_width());
  if (spec.shared.intermediate > 0)
    add_body(spec.shared.gate_up, spec.shared.down, spec.shared.activation.gated, 1, extents.shared_intermediate, spec.hidden);
  return out;
}

std::int64_t cpu_prepared_bytes(const LayerSpec& spec, const CpuExtents& extents) noexcept {
  return bias_elements(spec, extents) * static_cast<std::int64_t>(sizeof(float)) +
         extents.experts * static_cast<std::int64_t>(sizeof(std::int32_t));
}

}  // namespace motet
