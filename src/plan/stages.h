// SPDX-License-Identifier: Apache-2.0
// The stages of a token's life that this layer has, with the type of each tensor. A tensor that lies in the workspace has its
// area's name; "hidden_states" and "output" are the caller's.
#pragma once

#include <vector>

#include "plan/draft.h"

namespace motet {

std::vector<Stage> make_stages(const Draft& draft);

}  // namespace motet
