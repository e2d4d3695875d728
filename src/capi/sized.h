// SPDX-License-Identifier: Apache-2.0
// Structs that start with their size (law L20): members that came after the caller's version are zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "motet/error.h"

namespace motet::capi {

/// Copies `given` into this library's version of the struct. Throws Error(invalid_argument) when it is null or smaller than the first
/// version's (today's), Error(not_supported) when it is larger than known with unknown members set.
template <class T>
T read_sized(const T* given, const char* name) {
  if (given == nullptr) throw Error(ErrorCode::invalid_argument, std::string(name) + " must not be NULL; pass a struct made with its INIT macro");
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < sizeof(T) || size > 65536) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + ".size must be sizeof the struct, but is " + std::to_string(size) + "; use the INIT macro");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) throw Error(ErrorCode::not_supported, std::string(name) + " has members that this library does not know, and they are set; use a newer library");
  }
  T result;
  std::memset(&result, 0, sizeof result);
  std::memcpy(&result, given, std::min(size, sizeof(T)));
  return result;
}

/// Writes `value` to the caller's struct, no more bytes than it says it has; its `size` stays.
template <class T>
void write_sized(const T& value, T* out, const char* name) {
  const T given = read_sized(out, name);
  const std::size_t size = std::min(given.size, sizeof(T));
  std::memcpy(reinterpret_cast<unsigned char*>(out) + sizeof(std::size_t), reinterpret_cast<const unsigned char*>(&value) + sizeof(std::size_t), size - sizeof(std::size_t));
}

}  // namespace motet::capi
