// SPDX-License-Identifier: Apache-2.0
// Tables and numbers for people, JSON for machines.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "motet/error.h"

namespace motet::cli {

using Json = nlohmann::ordered_json;

/// A table whose columns are as wide as their widest cell; numbers (cells that begin with a digit) align right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : head_(std::move(head)) {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

/// True when stdout is a terminal and NO_COLOR is not set.
bool colour();
std::string bold(const std::string& text);
std::string red(const std::string& text);
std::string green(const std::string& text);

/// "1.5 GiB", "832 B".
std::string bytes_text(std::int64_t bytes);
/// "12.3 ms", "4.56 us".
std::string seconds_text(double seconds);
/// "1 234 567" with thin groups.
std::string count_text(std::int64_t count);

/// One JSON document on stdout, with "schema" first.
void print_json(const Json& document);
/// Writes to stdout with control characters escaped (but newlines and our own colours). Throws Error(io_error).
void print(const std::string& text);
/// Writes a line to stderr, escaped likewise; never throws: a closed or full stderr loses the line, not the exit code.
void say(const std::string& text) noexcept;
/// Says an error and returns the exit code that belongs to it.
int say_error(const Error& error);
/// Text of files and names made safe for a terminal: control characters (C0, DEL, C1, bidirectional overrides) as \\x or \\u.
std::string printable(const std::string& text);

}  // namespace motet::cli
