// SPDX-License-Identifier: Apache-2.0
// Headers of safetensors files: u64 little-endian length n, n bytes of JSON, then the data buffer. Hostile input is expected.
//
// Enforced: n <= 100,000,000 and within the file; JSON that starts with '{', without duplicate or unknown keys; known dtypes;
// whole non-negative extents and offsets; elements x bits = bytes without overflow; tensors that tile the data buffer without
// hole, overlap or trailing bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "motet/checkpoint.h"

namespace motet {

inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsFile {
  std::string name, path;              ///< file name in the checkpoint; path to open
  FileIdentity identity;
  std::vector<TensorInfo> tensors;     ///< in order of their bytes; offsets count from the start of the file
};

/// Reads the header of one file; the descriptor is closed on return. Throws Error(bad_input | io_error) naming file, tensor and rule.
SafetensorsFile read_safetensors(const std::string& path, const std::string& name);

/// Parses a header's JSON for a file of `file_bytes` bytes. The pure part of read_safetensors.
std::vector<TensorInfo> parse_safetensors_header(std::string_view json, std::int64_t file_bytes, const std::string& name);

}  // namespace motet
