// SPDX-License-Identifier: Apache-2.0
// Test twin whose operands are always wider than valid, as kernels that pad to 256 store them (2880 -> 3072, 2688 -> 2816).
#include "backends/reference/double_experts.h"
#include "base/math.h"

namespace motet {
namespace {

/// The next multiple of 256 above `valid`: padding exists on every axis.
std::int64_t stored(std::int64_t valid) noexcept { return round_up(valid + 1, 256); }
constexpr DoubleRules kRules{"twin_wide", stored, "this twin stores the next multiple of 256 above the valid extent", true};

}  // namespace

extern const Backend backend_twin_wide;
const Backend backend_twin_wide = {
    {kRules.name, "test twin: double precision, every axis stored wider than valid, padding verified and poisoned", false, false,
     double_supports, [](const BackendRequest& request) { return double_storage(request, kRules); }},
    [](const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights, Executor&) {
      return prepare_double(plan, rank, std::move(weights), kRules);
    }};

}  // namespace motet
