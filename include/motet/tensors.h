// SPDX-License-Identifier: Apache-2.0
// Plain safetensors files for inputs and results: named tensors, mapped for reading, written whole or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/types.h"

namespace motet {

/// One named tensor: row-major, contiguous, any alignment. The bytes belong to whoever made it.
struct NamedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// A mapped .safetensors file; its tensors stay valid while it lives. Thread-safe to read.
class TensorFile {
 public:
  /// Throws Error(io_error | bad_input) naming file, tensor and rule.
  static std::shared_ptr<TensorFile> open(const std::string& path);
  virtual ~TensorFile() = default;
  virtual const std::vector<NamedTensor>& tensors() const = 0;
  /// null when the file has no tensor of this name.
  virtual const NamedTensor* find(const std::string& name) const = 0;
};

/// Writes the tensors to a temporary file beside `path` and renames it: the file appears whole or not at all.
/// Throws Error(io_error), or Error(invalid_argument) when a name stands twice.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors);

/// Writes text the same way.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace motet
