// SPDX-License-Identifier: Apache-2.0
// Where a checkpoint lies on disk: a directory, one .safetensors file, or a hub id in the local cache. Nothing is downloaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace motet {

/// One line of an index: the tensor and the file that holds it.
struct IndexEntry {
  std::string tensor, file;
};

struct Source {
  std::string directory;               ///< absolute
  std::string config, quantization;    ///< texts of config.json and hf_quant_config.json ("" = absent)
  bool indexed = false;
  std::vector<IndexEntry> index;       ///< of model.safetensors.index.json, when indexed
  std::vector<std::string> files;      ///< shards, sorted: those of the index, or the one file
  std::vector<std::string> notes;      ///< files that lie beside and are not read
};

/// Finds `where` and reads its small files. Throws Error(bad_input | io_error) with what lies there instead.
Source locate(const std::string& where);

/// Parses model.safetensors.index.json. Shard names with path components are refused.
std::vector<IndexEntry> parse_index(std::string_view text);

}  // namespace motet
