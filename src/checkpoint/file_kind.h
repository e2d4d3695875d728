// SPDX-License-Identifier: Apache-2.0
// What a file is when it is not what its name says.
#pragma once

#include <string>
#include <string_view>

namespace motet {

/// Names what a file that begins with `start` (its first 512 bytes, or all of it) is, with the remedy: a Git LFS pointer, a web
/// page, a pickle, ... "" when it may be a safetensors file.
std::string foreign_kind(std::string_view start);

}  // namespace motet
