// SPDX-License-Identifier: Apache-2.0
// What each rank holds: experts over ep, the intermediate dimension over tp in units that no block straddles.
#pragma once

#include <string>
#include <vector>

#include "plan/catalog.h"

namespace motet {

/// The largest share of one rank: every rank stores and plans for it, so that there is one plan.
struct Share {
  std::int64_t experts = 0, intermediate = 0, shared = 0;
};

struct Slices {
  std::vector<RankSlice> ranks;  ///< intermediate_stored is still 0: the backend's answer fills it in
  Share share;
};

/// Smallest slice of the intermediate dimension: whole blocks of gate and up rows, whole blocks and runs of codes of down's
/// columns.
std::int64_t slice_unit(const Catalog& catalog, const ProjectionSpec& gate_up, const ProjectionSpec& down);

/// True when all ranks split the shared expert: they have the same tokens and one sum over ranks. A latent norm is not linear, and
/// zero experts are added to a reduced sum: the routed sum is reduced early there, and only a whole shared expert may be added to
/// it (L5).
bool shared_is_sliced(const LayerSpec& spec, const Deployment& deployment);

/// Requires inputs that check_inputs passed. A rank for which no unit is left has no experts: it takes part with nothing.
Slices make_slices(const LayerSpec& spec, const Deployment& deployment, const Catalog& catalog);

/// The layer as one rank's weights hold it: its experts and slices, biases where it adds them.
LayerSpec spec_of_rank(const LayerSpec& spec, const RankSlice& slice);

}  // namespace motet
