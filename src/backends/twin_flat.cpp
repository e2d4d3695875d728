// SPDX-License-Identifier: Apache-2.0
// Test twin whose products read mxfp8 activations, as low-bit kernels do; scales are flat: one after another, token-major, without
// extents.
#include "backends/reference/double_experts.h"
#include "base/math.h"
#include "formats/activation/encode.h"

namespace motet {
namespace {

std::int64_t stored(std::int64_t valid) noexcept { return round_up(valid, kMxfp8Block); }
constexpr DoubleRules kRules{"twin_flat", stored, "this twin stores whole blocks of 32, each with its scale", true,
                             Layout::flat_scales};

}  // namespace

extern const Backend backend_twin_flat;
const Backend backend_twin_flat = {
    {kRules.name, "test twin: double precision on mxfp8 activations with flat scales", false, false, quantised_supports,
     [](const BackendRequest& request) { return double_storage(request, kRules); }, Arithmetic::fast},
    [](const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights, Executor&) {
      return prepare_double(plan, rank, std::move(weights), kRules);
    }};

}  // namespace motet
