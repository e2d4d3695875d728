// SPDX-License-Identifier: Apache-2.0
// The workspace: which areas a layer needs, how large, how long they live, and where they lie (L16).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/draft.h"

namespace motet {

/// Areas with size and lifetime, offsets still 0. Sizes are bounded: a size over kLargestSize is larger than any plan may have.
std::vector<Area> needed_areas(const Draft& draft);

/// First fit over lifetimes, larger areas first: each area gets the lowest aligned offset where no area that lives at the same time
/// lies. Requires sizes <= kLargestSize.
Workspace pack(std::vector<Area> areas);

/// True when some stage sees both areas.
bool live_together(const Area& a, const Area& b) noexcept;

/// The proof: two areas that live together and overlap, by name; or nothing.
std::optional<std::string> disjoint(const std::vector<Area>& areas);

/// The whole proof: areas are disjoint, aligned and inside, and each tensor of a stage that lies in an area fits there at its
/// stored extents while the area lives. The first breach by name, or nothing.
std::optional<std::string> check_workspace(const Workspace& workspace, const std::vector<Stage>& stages);

}  // namespace motet
