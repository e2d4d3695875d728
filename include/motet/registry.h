// SPDX-License-Identifier: Apache-2.0
// What this build knows: the lists behind `motet list`. Thread-safe, read-only, in selection order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "motet/spec.h"

namespace motet {

struct ListEntry {
  std::string name;
  std::string about;               ///< one line
};

std::vector<ListEntry> formats();
std::vector<ListEntry> families();
std::vector<ListEntry> backends();
std::vector<ListEntry> targets();
std::vector<ListEntry> strategies();
std::vector<ListEntry> fabrics();
std::vector<ListEntry> arithmetics();
std::vector<ListEntry> routers();

/// A public model's layer shape, for `motet bench` and `motet list shapes`.
struct NamedShape {
  std::string name;                ///< such as "gpt-oss-20b"
  LayerSpec spec;                  ///< format is the published one
  std::string source;
};
const std::vector<NamedShape>& shapes();

/// The same layer with its routed experts stored in another weight format (row-major, gate and up separate).
/// Throws Error(invalid_argument) listing formats() when unknown, or when the format's blocks do not divide the shape.
LayerSpec with_format(const LayerSpec& spec, const std::string& format);

/// Version and build: "0.1.0".
std::string_view version() noexcept;

}  // namespace motet
