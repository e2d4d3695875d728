// SPDX-License-Identifier: Apache-2.0
// Experts in double precision, written from the formulas: the oracle, and what the test twins compute with. Weights are decoded
// by Format::decode; no code is shared with kernels or with the `cpu` backend.
//
// Every sum runs over k in ascending order in one double accumulator per (token, row). A row of weights is decoded once for
// up to 32 tokens. Values are rounded to fp32 only where they leave: GEMM2 rows, latent projections, logits.
#pragma once

#include <memory>
#include <optional>

#include "backends/backend.h"

namespace motet {

/// How a backend of this kind stores its operands.
struct DoubleRules {
  std::string_view name;
  /// Stored extent for a valid one; what `stored` returns for 0 is not used.
  std::int64_t (*stored)(std::int64_t valid) noexcept;
  std::string_view reason;
  /// Twins: act passes through memory at its stored width; padding on reduction axes is verified to be zero (L4) and the
  /// padding of GEMM2 rows is filled with NaN.
  bool twin = false;
  /// Twins: GEMM1 and GEMM2 of the routed experts read mxfp8 activations whose scales lie so.
  std::optional<Layout> scales = std::nullopt;
};

std::optional<Refusal> double_supports(const BackendRequest& request);
/// The same for rules with `scales`: mxfp8 activations keep the promise of neither `exact` nor `bf16`.
std::optional<Refusal> quantised_supports(const BackendRequest& request);
BackendStorage double_storage(const BackendRequest& request, const DoubleRules& rules);
std::unique_ptr<PreparedBackend> prepare_double(const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights,
                                                const DoubleRules& rules);

}  // namespace motet
