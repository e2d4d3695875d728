// SPDX-License-Identifier: Apache-2.0
#include "plan/slices.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/math.h"
#include "plan/sizes.h"

namespace motet {
namespace {

using std::int64_t;
using std::to_string;

struct Piece {
  int64_t begin = 0, valid = 0;
};

/// Units dealt to `parts`, larger shares first; the last unit may be ragged.
struct Split {
  int64_t extent = 0, unit = 1, parts = 1;

  int64_t units() const { return ceil_div(extent, unit); }
  int64_t first_unit(int64_t part) const { return part * (units() / parts) + std::min(part, units() % parts); }
  Piece piece(int64_t part) const {
    const int64_t begin = std::min(first_unit(part) * unit, extent);
    return {.begin = begin, .valid = std::min(first_unit(part + 1) * unit, extent) - begin};
  }
  int64_t largest() const { return std::min(ceil_div(units(), parts) * unit, extent); }
  /// "90 units of 32: 23 + 23 + 22 + 22"; runs of equal shares are counted beyond eight parts.
  std::string reason() const {
    std::string text = to_string(units()) + " units of " + to_string(unit) + ": ";
    const int64_t small = units() / parts, larger = units() % parts;
    if (parts > 8)
      return text + (larger > 0 ? to_string(larger) + " x " + to_string(small + 1) + " + " : "") + to_string(parts - larger) +
             " x " + to_string(small);
    for (int64_t part = 0; part < parts; ++part) text += (part > 0 ? " + " : "") + to_string(small + (part < larger ? 1 : 0));
    return text;
  }
};

}  // namespace

int64_t slice_unit(const Catalog& catalog, const ProjectionSpec& gate_up, const ProjectionSpec& down) {
  const FormatFacts* format = catalog.format(down.format);
  MOTET_CHECK(format != nullptr, "format %s", down.format.c_str());
  const auto edge = [](int64_t block) { return std::max<int64_t>(block, 1); };  // a scale of the whole extent is cut nowhere
  const auto common = [](int64_t a, int64_t b) { return bounded_product({a / std::gcd(a, b), b}); };
  return common(edge(gate_up.block_rows), common(edge(down.block_cols), format->values_per_block));
}

bool shared_is_sliced(const LayerSpec& spec, const Deployment& deployment) {
  return deployment.placement == TokenPlacement::replicated && deployment.tp * deployment.ep > 1 && spec.shared.intermediate > 0 &&
         !spec.latent_norm && spec.router.zero_experts == 0;
}

Slices make_slices(const LayerSpec& spec, const Deployment& deployment, const Catalog& catalog) {
  const int64_t all = deployment.tp * deployment.ep;
  const Split experts{.extent = spec.experts, .unit = 1, .parts = deployment.ep};
  const Split routed{.extent = spec.intermediate, .unit = slice_unit(catalog, spec.gate_up, spec.down), .parts = deployment.tp};
  const bool sliced = shared_is_sliced(spec, deployment);
  const Split shared{.extent = spec.shared.intermediate,
                     .unit = sliced ? slice_unit(catalog, spec.shared.gate_up, spec.shared.down) : 1,
                     .parts = sliced ? all : 1};
  Slices slices;
  std::string reason = deployment.tp > 1 ? routed.reason() : "whole intermediate dimension";
  if (sliced) reason += "; shared: " + shared.reason();
  if (!sliced && all > 1 && spec.shared.intermediate > 0)
    reason += deployment.placement == TokenPlacement::sharded
                  ? "; shared expert whole on every rank, for its own tokens"
                  : "; shared expert whole on every rank: the routed sum is reduced before it is added";
  if (deployment.ep > 1) reason += "; experts: " + experts.reason();
  for (int64_t rank = 0; rank < all; ++rank) {
    const int64_t ep_rank = rank / deployment.tp, tp_rank = rank % deployment.tp;
    const Piece mine = experts.piece(ep_rank), part = routed.piece(tp_rank), shared_part = shared.piece(sliced ? rank : 0);
    slices.ranks.push_back({.rank = rank,
                            .ep_rank = ep_rank,
                            .tp_rank = tp_rank,
                            .expert_begin = mine.begin,
                            .expert_count = part.valid > 0 ? mine.valid : 0,
                            .intermediate_begin = part.begin,
                            .intermediate_valid = part.valid,
                            .shared_begin = shared_part.begin,
                            .shared_valid = shared_part.valid,
                            .down_bias = tp_rank == 0,
                            .shared_bias = !sliced || rank == 0,
                            .reason = reason});
  }
  slices.share = {.experts = experts.largest(), .intermediate = routed.largest(), .shared = shared.largest()};
  return slices;
}

LayerSpec spec_of_rank(const LayerSpec& spec, const RankSlice& slice) {
  LayerSpec mine = spec;
  mine.experts = slice.expert_count;
  mine.intermediate = slice.intermediate_valid;
  mine.down.bias = spec.down.bias && slice.down_bias;
  mine.shared.intermediate = slice.shared_valid;
  mine.shared.down.bias = spec.shared.down.bias && slice.shared_bias;
  return mine;
}

}  // namespace motet
