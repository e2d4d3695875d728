// SPDX-License-Identifier: Apache-2.0
// Names of the enumerators that only planning prints; the public ones are in motet/plan.h.
#pragma once

#include "motet/plan.h"

namespace motet {

std::string_view name_of(RouterSelection) noexcept;
std::string_view name_of(GroupScore) noexcept;
std::string_view name_of(RouterNormalize) noexcept;
std::string_view name_of(ZeroExpertKind) noexcept;
std::string_view name_of(ScaleSite) noexcept;
std::string_view name_of(GateUpOrder) noexcept;
std::string_view name_of(RowRule) noexcept;

}  // namespace motet
