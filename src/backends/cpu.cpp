// SPDX-License-Identifier: Apache-2.0
// The processor: published bytes through kernels compiled per target. What it runs is chosen in cpu/choice.h, how in cpu/experts.h.
#include "backends/cpu/choice.h"
#include "backends/cpu/experts.h"

namespace motet {
namespace {

std::optional<Refusal> supports(const BackendRequest& request) {
  return choose_kernels(request.spec, request.deployment, request.environment, request.target).refusal;
}

BackendStorage storage(const BackendRequest& request) {
  BackendStorage out;
  const CpuChoice choice = choose_kernels(request.spec, request.deployment, request.environment, request.target);
  if (!choice.kernels) return out;  // declined: supports() says why
  const CpuKernels& kernels = *choice.kernels;
  const CpuExtents extents{request.experts_here, request.intermediate_valid, request.shared_intermediate_valid};
  const CpuWidths widths = cpu_widths(kernels, request.spec, extents);
  out.hidden = widths.hidden;
  out.latent = widths.latent;
  out.intermediate = widths.intermediate;
  out.shared_intermediate = widths.shared_intermediate;
  out.up = request.intermediate_valid;
  out.gate = request.spec.activation.gated ? request.intermediate_valid : 0;
  out.rows_width = request.spec.dispatch_width();
  out.activation = kernels.activation;
  out.scratch_per_thread = cpu_scratch(kernels, request.spec, extents).bytes();
  out.prepared = cpu_prepared_bytes(request.spec, extents);
  const CpuPacked packed = cpu_packed(request.spec, extents, request.deployment.wishes.residence);
  out.packed = packed.bytes;
  out.packed_padding = packed.padding;
  out.arithmetic = kernels.arithmetic();
  out.reason = "reduction axes in whole units of " + std::to_string(kernels.gate_up.many->k_unit) + " elements (" + choice.reason + ")";
  out.sum_order = sum_orders(kernels, request.spec);
  if (kernels.activation == DType::bf16) {
    out.rounding_points = {"prepared activations: to bf16, once", "intermediates: to bf16, once, after bias and body in fp32"};
  } else {
    out.rounding_points = {"intermediates: fp32, after bias and body in fp32"};
  }
  for (std::string& sentence : encodings(kernels)) out.rounding_points.push_back(std::move(sentence));
  return out;
}

}  // namespace

extern const Backend backend_cpu;
const Backend backend_cpu = {
    {"cpu", "kernels for this processor on the published bytes; targets chosen at run time", true, true, supports, storage},
    prepare_cpu};

}  // namespace motet
