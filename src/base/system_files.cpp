// SPDX-License-Identifier: Apache-2.0
#include "base/system_files.h"

#include <charconv>
#include <cstdio>
#include <memory>

namespace motet {

std::optional<std::string> read_text(const std::filesystem::path& file) {
  constexpr std::size_t kMost = std::size_t{4} << 20;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "re"), &std::fclose);
  if (stream == nullptr) return std::nullopt;
  std::string text;
  char buffer[4096];
  std::size_t got = 0;
  while (text.size() < kMost && (got = std::fread(buffer, 1, sizeof buffer, stream.get())) > 0) text.append(buffer, got);
  if (std::ferror(stream.get()) != 0) return std::nullopt;
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  std::size_t begin = text.find_first_not_of(separators);
  while (begin != std::string_view::npos) {
    const std::size_t end = text.find_first_of(separators, begin);
    parts.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(separators, end);
  }
  return parts;
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  const auto words = split(text, " \t\n");
  if (words.size() != 1) return std::nullopt;
  std::int64_t value = 0;
  const char* const end = words[0].data() + words[0].size();
  const auto [stop, error] = std::from_chars(words[0].data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::vector<int> list_of(std::string_view text) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  std::vector<int> result;
  for (const std::string_view part : split(text, ", \n")) {
    const std::size_t dash = part.find('-');
    const auto first = integer_of(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : integer_of(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMost) continue;
    for (std::int64_t value = *first; value <= *last; ++value) result.push_back(static_cast<int>(value));
  }
  return result;
}

}  // namespace motet
