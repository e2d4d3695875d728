// SPDX-License-Identifier: Apache-2.0
// Refusals that planning itself makes, and the ErrorCode each becomes when a caller insists on the plan (PlanResult::value).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motet/plan.h"

namespace motet {

/// invalid_argument when spec, deployment or a name in a wish is wrong; not_supported for what is understood but declined,
/// which is also the answer for codes that backends bring.
ErrorCode error_code_of(const Refusal& refusal) noexcept;

/// "RULE (given GIVEN; needed NEEDED) [CODE]".
std::string sentence_of(const Refusal& refusal);

/// "a, b, c"
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

}  // namespace motet
