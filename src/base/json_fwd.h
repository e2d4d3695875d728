// SPDX-License-Identifier: Apache-2.0
// The name of Json, for headers that only point to it: base/json.h takes two seconds to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace motet {

using Json = nlohmann::json;

}  // namespace motet
