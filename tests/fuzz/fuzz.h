// SPDX-License-Identifier: Apache-2.0
// What every fuzz target expects: hostile text gives a value or a motet::Error that is not blamed on Motet. Anything else that is
// thrown ends the process, and the sanitizers see the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "motet/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace motet::fuzz {

inline std::string_view text_of_input(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

template <class Body>
int run(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal || error.what()[0] == '\0') std::abort();
  }
  return 0;
}

/// The text up to the next line that is "---", which is taken off the front; the rest when there is none.
inline std::string_view next_part(std::string_view& text) {
  constexpr std::string_view kSeparator = "\n---\n";
  const std::size_t at = text.find(kSeparator);
  const std::string_view part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view{} : text.substr(at + kSeparator.size());
  return part;
}

}  // namespace motet::fuzz
