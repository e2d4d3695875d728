// SPDX-License-Identifier: Apache-2.0
// The one owner of each extent (L1): valid from the model and the slices, stored from the backend, halves padded apart (L4).
#pragma once

#include <vector>

#include "plan/draft.h"

namespace motet {

std::vector<Width> make_widths(const Draft& draft);

}  // namespace motet
