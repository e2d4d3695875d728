// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <cstdarg>
#include <cstdio>

namespace motet {

std::string format_text(const char* format, ...) {
  std::va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  const int length = std::vsnprintf(nullptr, 0, format, list);
  va_end(list);
  std::string text(length > 0 ? static_cast<std::size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

std::size_t utf8_length(std::string_view text) noexcept {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) { return at(i) >= low && at(i) <= high; };
  const unsigned first = at(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool second = follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return second && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool second = follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
    return second && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

std::string Quoted::operator()(std::string_view text, std::size_t longest) const {
  std::string result = "'";
  std::size_t i = 0;
  while (i < text.size() && i < longest) {
    const std::size_t length = utf8_length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      result += format_text("\\x%02x", byte);
      ++i;
    } else {
      result.append(text.substr(i, length));
      i += length;
    }
  }
  return result + (i < text.size() ? "...'" : "'");
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024 && bytes > -1024) return format_text("%lld bytes", static_cast<long long>(bytes));
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while ((value >= 999.5 || value <= -999.5) && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return format_text("%.3g %s", value, kUnits[unit]);
}

}  // namespace motet
