// SPDX-License-Identifier: Apache-2.0
// Small files of /proc and /sys. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace motet {

/// The file's text, at most 4 MiB of it, or none when it cannot be read.
std::optional<std::string> read_text(const std::filesystem::path& file);

/// The parts of `text` between separators; empty parts are left out.
std::vector<std::string_view> split(std::string_view text, std::string_view separators);

/// A decimal integer that is the whole text but for blanks around it, or none.
std::optional<std::int64_t> integer_of(std::string_view text);

/// A kernel list such as "0-3,8,10-11", ascending; malformed parts are left out and no list is longer than 2^20.
std::vector<int> list_of(std::string_view text);

}  // namespace motet
