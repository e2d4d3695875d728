// SPDX-License-Identifier: Apache-2.0
// Test twin that can only hand out finalized rows, as kernels that weigh and sum inside do.
#include "backends/reference/double_experts.h"

namespace motet {
namespace {

std::int64_t stored(std::int64_t valid) noexcept { return valid; }
constexpr DoubleRules kRules{"twin_finalized", stored, "this twin pads nothing", true};

std::optional<Refusal> supports(const BackendRequest& request) {
  const Finalize finalize = request.deployment.wishes.finalize;
  if (finalize == Finalize::builtin) return double_supports(request);
  return Refusal{"backend_finalizes_itself", "this backend cannot leave rows unfinalized",
                 "finalize " + std::string(name_of(finalize)), "finalize builtin"};
}

}  // namespace

extern const Backend backend_twin_finalized;
const Backend backend_twin_finalized = {{kRules.name, "test twin: double precision, cannot leave rows unfinalized", false, false,
                                         supports, [](const BackendRequest& request) { return double_storage(request, kRules); }},
                                        [](const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights,
                                           Executor&) { return prepare_double(plan, rank, std::move(weights), kRules); }};

}  // namespace motet
