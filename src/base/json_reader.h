// SPDX-License-Identifier: Apache-2.0
// A pull parser for large untrusted JSON, such as a safetensors header with tens of thousands of tensors: one pass, no tree,
// memory of one string. Not thread-safe; views it returns point into the text or into the reader and live until its next call.
//
//   JsonReader reader(text, "header of x.safetensors");
//   reader.open_object();
//   while (auto name = reader.next_key()) { reader.open_object(); ... reader.read_int64(); ... }
//   reader.finish();
//
// Grammar: RFC 8259 plus bare NaN, Infinity and -Infinity as numbers; UTF-8 is verified; nesting is at most 64.
// Everything throws Error(bad_input) with the byte position. Duplicate keys are the caller's to find, who has a table of
// them anyway (fail_duplicate); parse_json (base/json.h) finds them itself.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace motet {

class JsonReader {
 public:
  enum class Kind { object, array, string, number, boolean, null };
  struct Number {
    enum { signed_integer, unsigned_integer, real } kind = signed_integer;
    std::int64_t integer = 0;   ///< signed_integer
    std::uint64_t natural = 0;  ///< unsigned_integer: beyond the signed range
    double real_value = 0;      ///< always set
  };
  static constexpr int kMaxDepth = 64;

  JsonReader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  Kind peek();  ///< kind of the value that comes next
  void open_object();
  std::optional<std::string_view> next_key();  ///< the next member's key, or none after the last (the object is then closed)
  void open_array();
  bool next_item();  ///< true before each item, false after the last (the array is then closed)
  std::string_view read_string();
  Number read_number();
  std::int64_t read_int64();  ///< throws unless written as an integer within 64 bits
  bool read_bool();
  void read_null();
  void skip();    ///< steps over one value, checking its grammar
  void finish();  ///< only blanks may follow

  std::size_t position() const { return at_; }  ///< bytes read so far
  /// Throws Error(bad_input): "WHAT: SENTENCE (byte N)".
  [[noreturn]] void fail(const std::string& sentence) const { fail_at(at_, sentence); }
  [[noreturn]] void fail_duplicate(std::string_view key) const;

 private:
  [[noreturn]] void fail_at(std::size_t position, const std::string& sentence) const;
  char next_character();  // after blanks; '\0' at the end
  void open(char bracket, const char* what);
  bool step(char closing, const char* where);  // consumes ',' or the closing bracket
  bool take_word(std::string_view word);
  void read_escape();
  std::uint32_t read_hex4();

  std::string_view text_, what_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::bitset<kMaxDepth + 1> has_members_;  // per depth: a ',' is due before the next member
  std::string scratch_;                     // a string that had escapes
};

}  // namespace motet
