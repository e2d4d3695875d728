// SPDX-License-Identifier: Apache-2.0
// Sentences for errors and notes of this folder.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "motet/error.h"

namespace motet {

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, text_of(parts...));
}

/// "[32, 5760, 90]"
inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

/// motet::quoted under a name that std::quoted does not capture by argument-dependent lookup.
inline std::string quote(std::string_view text) { return motet::quoted(text); }

}  // namespace motet
