// SPDX-License-Identifier: Apache-2.0
// Outcomes of calls that neither throw nor allocate.
#pragma once

#include "motet/error.h"

namespace motet {

/// A RunStatus with a sentence in printf form; numbers and short strings only, so that formatting allocates nothing.
/// A sentence longer than the status holds ends in "...".
[[gnu::cold, gnu::format(printf, 2, 3)]] RunStatus make_status(ErrorCode code, const char* format, ...) noexcept;

}  // namespace motet
