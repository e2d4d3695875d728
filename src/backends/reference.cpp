// SPDX-License-Identifier: Apache-2.0
// The oracle: double precision, nothing padded.
#include "backends/reference/double_experts.h"

namespace motet {
namespace {

std::int64_t valid_is_stored(std::int64_t valid) noexcept { return valid; }
constexpr DoubleRules kRules{"reference", valid_is_stored, "the reference pads nothing"};

}  // namespace

extern const Backend backend_reference;
const Backend backend_reference = {
    {kRules.name, "double precision from the formulas, decoding by table: the truth others are held to", false, true,
     double_supports, [](const BackendRequest& request) { return double_storage(request, kRules); }},
    [](const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights, Executor&) {
      return prepare_double(plan, rank, std::move(weights), kRules);
    }};

}  // namespace motet
