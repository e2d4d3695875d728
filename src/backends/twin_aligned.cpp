// SPDX-License-Identifier: Apache-2.0
// Test twin that stores multiples of 128, as kernels with 128-wide tiles do (2880 -> 2944).
#include "backends/reference/double_experts.h"
#include "base/math.h"

namespace motet {
namespace {

std::int64_t stored(std::int64_t valid) noexcept { return round_up(valid, 128); }
constexpr DoubleRules kRules{"twin_aligned", stored, "this twin stores multiples of 128", true};

}  // namespace

extern const Backend backend_twin_aligned;
const Backend backend_twin_aligned = {
    {kRules.name, "test twin: double precision, axes stored at multiples of 128, padding verified and poisoned", false, false,
     double_supports, [](const BackendRequest& request) { return double_storage(request, kRules); }},
    [](const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights, Executor&) {
      return prepare_double(plan, rank, std::move(weights), kRules);
    }};

}  // namespace motet
