// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv): whether ranks mean the same. Not for secrets.
#pragma once

#include <cstdint>
#include <string_view>

namespace motet {

class Hash {
 public:
  void add(std::uint64_t word) noexcept {
    for (int byte = 0; byte < 8; ++byte) add_byte(static_cast<unsigned char>(word >> (8 * byte)));
  }
  /// With its length, so that no two lists of texts are one.
  void add(std::string_view text) noexcept {
    add(text.size());
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  void add_byte(unsigned char byte) noexcept { value_ = (value_ ^ byte) * 0x100000001B3u; }

  std::uint64_t value_ = 0xCBF29CE484222325u;
};

}  // namespace motet
