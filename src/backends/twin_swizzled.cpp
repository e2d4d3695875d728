// SPDX-License-Identifier: Apache-2.0
// Test twin whose products read mxfp8 activations, as low-bit kernels do; scales lie in tiles of 128 rows x 4 groups, every expert
// in tiles of its own.
#include "backends/reference/double_experts.h"
#include "base/math.h"
#include "formats/activation/encode.h"

namespace motet {
namespace {

std::int64_t stored(std::int64_t valid) noexcept { return round_up(valid, kMxfp8Block); }
constexpr DoubleRules kRules{"twin_swizzled", stored, "this twin stores whole blocks of 32, each with its scale", true,
                             Layout::swizzled_128x4};

}  // namespace

extern const Backend backend_twin_swizzled;
const Backend backend_twin_swizzled = {
    {kRules.name, "test twin: double precision on mxfp8 activations with swizzled 128x4 scales", false, false, quantised_supports,
     [](const BackendRequest& request) { return double_storage(request, kRules); }, Arithmetic::fast},
    [](const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights, Executor&) {
      return prepare_double(plan, rank, std::move(weights), kRules);
    }};

}  // namespace motet
