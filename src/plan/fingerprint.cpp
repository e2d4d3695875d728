// SPDX-License-Identifier: Apache-2.0
#include "plan/fingerprint.h"

#include <bit>
#include <charconv>
#include <type_traits>

#include "plan/fields.h"
#include "plan/names.h"

namespace motet {
namespace {

/// Writes the canonical text. Strings carry their length, so that no two different plans give one text.
class CanonicalText {
 public:
  template <class T>
  void operator()(std::string_view name, const T& value) {
    text_ += name;
    text_ += '=';
    write(value);
    text_ += ';';
  }
  const std::string& text() const { return text_; }

 private:
  void write(std::int64_t value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    text_.append(digits, end);
  }
  void write(double value) { write(std::bit_cast<std::int64_t>(value)); }
  void write(const std::string& value) {
    write(static_cast<std::int64_t>(value.size()));
    text_ += ':';
    text_ += value;
  }
  template <class T>
  void write(const std::vector<T>& values) {
    write(static_cast<std::int64_t>(values.size()));
    text_ += '[';
    for (const T& value : values) {
      write(value);
      text_ += ',';
    }
    text_ += ']';
  }
  template <class T>
  void write(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      text_ += name_of(value);
    } else if constexpr (std::is_integral_v<T>) {
      write(static_cast<std::int64_t>(value));
    } else {
      text_ += '{';
      visit_fields(*this, value);
      text_ += '}';
    }
  }

  std::string text_;
};

}  // namespace

std::string fnv1a_128(std::string_view bytes) {
  using Wide = unsigned __int128;
  constexpr Wide kPrime = (Wide{1} << 88) + 0x13bu;
  Wide hash = (Wide{0x6c62272e07bb0142u} << 64) + 0x62b821756295c58du;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  std::string digits(32, '0');
  for (std::size_t i = 0; i < digits.size(); ++i)
    digits[digits.size() - 1 - i] = "0123456789abcdef"[static_cast<unsigned>(hash >> (4 * i)) & 15u];
  return digits;
}

std::string fingerprint_of(const Plan& plan) {
  CanonicalText text;
  visit_agreed_fields(text, plan);
  return fnv1a_128(text.text());
}

}  // namespace motet
