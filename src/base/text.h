// SPDX-License-Identifier: Apache-2.0
// Text for messages: sentences with values in them, and names from untrusted files made safe to print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace motet {

/// printf into a string. For sentences of Errors and reports, not for hot paths.
[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

/// quoted(text): 'text' in single quotes; control characters and bytes that are not UTF-8 as \xNN; cut after about `longest` bytes
/// with "...". An object, not a function, so that argument-dependent lookup does not find std::quoted for a std::string.
struct Quoted {
  std::string operator()(std::string_view text, std::size_t longest = 120) const;
};
inline constexpr Quoted quoted{};

/// "1.5 GiB", "288 KiB", "17 bytes": three significant digits.
std::string bytes_text(std::int64_t bytes);

/// Bytes at the front of `text` that are one well-formed UTF-8 character (1 to 4), or 0 (RFC 3629: no surrogates, shortest form).
std::size_t utf8_length(std::string_view text) noexcept;

}  // namespace motet
