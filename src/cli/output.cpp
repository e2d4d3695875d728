// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>


namespace motet::cli {
namespace {

std::string paint(const char* code, const std::string& text) { return colour() ? fmt::format("\033[{}m{}\033[0m", code, text) : text; }

// Columns that a terminal shows: UTF-8 continuation bytes and colour sequences take none.
std::size_t width(const std::string& text) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++columns;
    }
  }
  return columns;
}

bool is_number(const std::string& text) { return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '-'); }

}  // namespace

bool colour() {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && isatty(STDOUT_FILENO) == 1;
}
std::string bold(const std::string& text) { return paint("1", text); }
std::string red(const std::string& text) { return paint("31", text); }
std::string green(const std::string& text) { return paint("32", text); }

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const std::string& cell : head_) widths.push_back(width(cell));
  std::vector<bool> numeric(head_.size(), !rows_.empty());
  for (const auto& cells : rows_) {
    for (std::size_t i = 0; i < cells.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], width(cells[i]));
      if (!cells[i].empty() && !is_number(cells[i])) numeric[i] = false;
    }
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells, bool heading) {
    std::string text = "  ";
    for (std::size_t i = 0; i < cells.size() && i < widths.size(); ++i) {
      const std::string pad(widths[i] - std::min(widths[i], width(cells[i])), ' ');
      const std::string cell = heading ? bold(cells[i]) : cells[i];
      text += numeric[i] ? pad + cell : cell + pad;
      if (i + 1 < cells.size()) text += "  ";
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out += text + "\n";
  };
  line(head_, true);
  for (const auto& cells : rows_) line(cells, false);
  return out;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = -1;
  do {
    value /= 1024;
    ++unit;
  } while (value >= 1024 && unit < 5);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : (value < 100 ? 1 : 0), units[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string count_text(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (std::int64_t i = static_cast<std::int64_t>(digits.size()) - 3; i > (count < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<std::size_t>(i), " ");
  }
  return digits;
}

std::string printable(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const auto third = static_cast<unsigned char>(i + 2 < text.size() ? text[i + 2] : 0);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // C1 controls
      out += fmt::format("\\u{:04x}", next);
      i += 1;
    } else if (byte == 0xE2 && ((next == 0x80 && third >= 0xAA && third <= 0xAE) || (next == 0x81 && third >= 0xA6 && third <= 0xA9))) {  // bidirectional overrides
      out += fmt::format("\\u{:04x}", 0x2000 + (next - 0x80) * 64 + (third - 0x80));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

namespace {

// printable() but for newlines and the colour sequences that paint() makes.
std::string escaped(const std::string& text) {
  std::string out, run;
  const auto flush = [&] { out += printable(run), run.clear(); };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto ours = [&](const char* sequence) { return colour() && text.compare(i, std::char_traits<char>::length(sequence), sequence) == 0; };
    const char* const sequences[] = {"\033[1m", "\033[31m", "\033[32m", "\033[0m"};
    const auto* found = std::find_if(std::begin(sequences), std::end(sequences), ours);
    if (found != std::end(sequences)) {
      flush();
      out += *found;
      i += std::char_traits<char>::length(*found) - 1;
    } else if (text[i] == '\n') {
      flush();
      out += '\n';
    } else {
      run += text[i];
    }
  }
  flush();
  return out;
}

}  // namespace

void say(const std::string& text) noexcept {
  try {
    const std::string line = escaped(text) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (const std::bad_alloc&) {  // NOLINT: there is nobody left to tell
  }
}

int say_error(const Error& error) {
  say(fmt::format("motet: {}: {}", name_of(error.code()), error.what()));
  return exit_code_of(error.code());
}

void print(const std::string& given) {
  const std::string text = escaped(given);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::io_error, "stdout must take the result, but writing to it failed; is the reader gone or the disk full?");
  }
}

// Text from files may hold bytes that are not UTF-8: they are replaced, so that the document is always valid JSON. dump() escapes
// C0 controls; the others are escaped as JSON escapes by ensure_ascii.
void print_json(const Json& document) { print(document.dump(2, ' ', true, Json::error_handler_t::replace) + "\n"); }

}  // namespace motet::cli
