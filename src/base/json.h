// SPDX-License-Identifier: Apache-2.0
// JSON: the one home of nlohmann/json below the command line. Thread-safe (no state).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace motet {

/// Objects keep their keys sorted. For values that are built and dumped, and for parsed text.
using Json = nlohmann::json;

/// Parses untrusted text. `what` names it in errors, such as "config.json" or "header of model-00001.safetensors".
/// Accepts what Python's json writes: bare NaN, Infinity and -Infinity become doubles. Throws Error(bad_input) with the byte
/// position for anything else that is not JSON, for a duplicate key (named), and for nesting deeper than 64.
Json parse_json(std::string_view text, std::string_view what);

/// A number, or an object {"__float__": "Infinity" | "-Infinity" | "NaN"} (or a decimal string), as a double; else none.
std::optional<double> number_of(const Json& value);

}  // namespace motet
