// SPDX-License-Identifier: Apache-2.0
// Routers by name: the methods of published checkpoints as RouterSpec values, behind `motet list routers`. Numbers that a
// checkpoint sets (groups, scale, cap) hold those of the named release. Read-only and safe from any thread.
#pragma once

#include <span>
#include <string_view>

#include "motet/spec.h"

namespace motet {

struct NamedRouter {
  std::string_view name;
  std::string_view about;  ///< one line: the method and a family that uses it
  RouterSpec spec{};
};

/// Every named router, plain ones first.
std::span<const NamedRouter> named_routers() noexcept;
/// null when unknown.
const NamedRouter* find_router(std::string_view name) noexcept;

}  // namespace motet
