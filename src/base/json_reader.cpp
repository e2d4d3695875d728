// SPDX-License-Identifier: Apache-2.0
#include "base/json_reader.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>

#include "base/text.h"
#include "motet/error.h"

namespace motet {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// True when none of eight bytes is a quote, a backslash, a control character or outside ASCII (the classic word-at-a-time test).
bool is_plain(const char* eight) {
  std::uint64_t word;
  std::memcpy(&word, eight, sizeof word);
  constexpr std::uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
  const auto zero_byte = [](std::uint64_t w) { return (w - kOnes) & ~w; };
  const std::uint64_t special = zero_byte(word ^ (kOnes * '"')) | zero_byte(word ^ (kOnes * '\\')) | (word - kOnes * 0x20) | word;
  return (special & kHigh) == 0;
}

}  // namespace

void JsonReader::fail_at(std::size_t position, const std::string& sentence) const {
  throw Error(ErrorCode::bad_input, std::string(what_) + ": " + sentence + " (byte " + std::to_string(position) + ")");
}
void JsonReader::fail_duplicate(std::string_view key) const {
  fail("the key " + quoted(key) + " occurs twice in one object; each key may occur once");
}

char JsonReader::next_character() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

JsonReader::Kind JsonReader::peek() {
  const char c = next_character();
  switch (c) {
    case '{':
      return Kind::object;
    case '[':
      return Kind::array;
    case '"':
      return Kind::string;
    case 't':
    case 'f':
      return Kind::boolean;
    case 'n':
      return Kind::null;
    default:
      break;
  }
  if (is_digit(c) || c == '-' || c == 'N' || c == 'I') return Kind::number;
  if (at_ >= text_.size()) fail("the text ends where a value must begin; it is not complete JSON");
  fail("not JSON: " + quoted(text_.substr(at_, 1)) + " where a value must begin");
}

void JsonReader::open(char bracket, const char* what) {
  if (next_character() != bracket) fail(std::string("expected ") + what);
  if (depth_ == kMaxDepth) fail("values are nested deeper than " + std::to_string(kMaxDepth));
  ++at_;
  has_members_[static_cast<std::size_t>(++depth_)] = false;
}
void JsonReader::open_object() { open('{', "an object"); }
void JsonReader::open_array() { open('[', "an array"); }

bool JsonReader::step(char closing, const char* where) {
  const auto depth = static_cast<std::size_t>(depth_);
  const char c = next_character();
  if (c == closing) {
    ++at_;
    --depth_;
    return false;
  }
  if (!has_members_[depth]) {
    has_members_[depth] = true;
    return true;
  }
  if (c != ',') fail(std::string("expected ',' or '") + closing + "' in " + where);
  ++at_;
  if (next_character() == closing) fail(std::string("a value must follow the ',' in ") + where);
  return true;
}

std::optional<std::string_view> JsonReader::next_key() {
  if (!step('}', "an object")) return std::nullopt;
  if (next_character() != '"') fail("a key must be a string");
  const std::string_view key = read_string();
  if (next_character() != ':') fail("expected ':' after the key " + quoted(key));
  ++at_;
  return key;
}
bool JsonReader::next_item() { return step(']', "an array"); }

std::string_view JsonReader::read_string() {
  if (next_character() != '"') fail("expected a string");
  const std::size_t opening = at_;
  std::size_t begin = ++at_;
  bool copied = false;
  for (;;) {
    while (at_ + 8 <= text_.size() && is_plain(text_.data() + at_)) at_ += 8;
    if (at_ >= text_.size()) fail_at(opening, "a string that begins here has no end");
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte == '"') break;
    if (byte == '\\') {
      if (!copied) scratch_.clear();
      copied = true;
      scratch_.append(text_.substr(begin, at_ - begin));
      read_escape();
      begin = at_;
    } else {
      if (byte < 0x20) fail("a control character inside a string must be written as an escape");
      const std::size_t length = byte < 0x80 ? 1 : utf8_length(text_.substr(at_, 4));
      if (length == 0) fail("a string is not valid UTF-8");
      at_ += length;
    }
  }
  const std::string_view rest = text_.substr(begin, at_ - begin);
  ++at_;
  if (!copied) return rest;
  scratch_.append(rest);
  return scratch_;
}

std::uint32_t JsonReader::read_hex4() {
  std::uint32_t value = 0;
  const char* begin = text_.data() + at_;
  if (text_.size() - at_ < 4 || std::from_chars(begin, begin + 4, value, 16).ptr != begin + 4)
    fail("\\u must be followed by four hexadecimal digits");
  at_ += 4;
  return value;
}

void JsonReader::read_escape() {
  static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  const char c = ++at_ < text_.size() ? text_[at_] : '\0';
  const std::size_t plain = c == '\0' ? std::string_view::npos : kFrom.find(c);
  if (plain != std::string_view::npos) {
    scratch_.push_back(kTo[plain]);
    ++at_;
    return;
  }
  if (c != 'u') fail("unknown escape in a string");
  ++at_;
  std::uint32_t code = read_hex4();
  if (code >= 0xD800 && code <= 0xDFFF) {
    if (code >= 0xDC00 || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair stands alone in a string");
    at_ += 2;
    const std::uint32_t low = read_hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair stands alone in a string");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  const auto put = [&](std::uint32_t byte) { scratch_.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

bool JsonReader::take_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

JsonReader::Number JsonReader::read_number() {
  Number number;
  const auto special = [&](double value) {
    number.kind = Number::real;
    number.real_value = value;
    return number;
  };
  const char first = next_character();
  if (first == 'N' && take_word("NaN")) return special(std::numeric_limits<double>::quiet_NaN());
  if (first == 'I' && take_word("Infinity")) return special(std::numeric_limits<double>::infinity());
  if (first == '-' && take_word("-Infinity")) return special(-std::numeric_limits<double>::infinity());

  std::size_t end = at_;
  const auto digit = [&] { return end < text_.size() && is_digit(text_[end]); };
  const auto digits = [&] {
    if (!digit()) fail("not a number: a digit is missing");
    while (digit()) ++end;
  };
  const auto is = [&](char c) { return end < text_.size() && text_[end] == c; };
  if (is('-')) ++end;
  const std::size_t first_digit = end;
  digits();
  if (text_[first_digit] == '0' && end - first_digit > 1) fail("a number must not begin with 0");
  bool integer = true;
  if (is('.')) integer = false, ++end, digits();
  if (is('e') || is('E')) {
    integer = false;
    ++end;
    if (is('+') || is('-')) ++end;
    digits();
  }
  const char* const begin = text_.data() + at_;
  const char* const stop = text_.data() + end;
  const bool negative_zero = integer && first == '-' && text_[first_digit] == '0';  // -0 is a real number: its sign counts
  if (integer && !negative_zero && std::from_chars(begin, stop, number.integer).ec == std::errc()) {
    number.real_value = static_cast<double>(number.integer);
  } else if (integer && first != '-' && std::from_chars(begin, stop, number.natural).ec == std::errc()) {
    number.kind = Number::unsigned_integer;
    number.real_value = static_cast<double>(number.natural);
  } else {
    number.kind = Number::real;
    if (std::from_chars(begin, stop, number.real_value).ec != std::errc()) fail("a number is outside the range of a 64-bit float");
  }
  at_ = end;
  return number;
}

std::int64_t JsonReader::read_int64() {
  if (peek() != Kind::number) fail("expected an integer");
  const std::size_t begin = at_;
  const Number number = read_number();
  if (number.kind != Number::signed_integer) fail_at(begin, "expected an integer within 64 bits");
  return number.integer;
}

bool JsonReader::read_bool() {
  const char c = next_character();
  if (c == 't' && take_word("true")) return true;
  if (c == 'f' && take_word("false")) return false;
  fail("expected true or false");
}

void JsonReader::read_null() {
  if (next_character() != 'n' || !take_word("null")) fail("expected null");
}

void JsonReader::skip() {  // recursion is bounded by kMaxDepth
  switch (peek()) {
    case Kind::object:
      open_object();
      while (next_key()) skip();
      return;
    case Kind::array:
      open_array();
      while (next_item()) skip();
      return;
    case Kind::string:
      read_string();
      return;
    case Kind::number:
      read_number();
      return;
    case Kind::boolean:
      read_bool();
      return;
    case Kind::null:
      read_null();
      return;
  }
}

void JsonReader::finish() {
  next_character();
  if (at_ < text_.size()) fail("text follows the end of the JSON value");
}

}  // namespace motet
