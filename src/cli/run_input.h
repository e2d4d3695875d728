// SPDX-License-Identifier: Apache-2.0
// The input of `motet run`: tensors of a file, or seeded synthetic hidden states. Owns aligned copies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/motet.hpp"

namespace motet::cli {

/// Input of one layer's forward, checked against its spec.
struct RunInput {
  DType dtype = DType::f32;
  std::int64_t tokens = 0;
  std::vector<std::byte> hidden_states;
  std::vector<float> router_logits, top_k_weights;
  std::vector<std::int32_t> top_k_index;
  std::vector<std::int64_t> token_ids;
  std::string source;              ///< for the report

  ForwardInput view(const LayerSpec& spec) const;
};

/// What planning needs of an input, known before any of it is made.
struct InputShape {
  std::int64_t tokens = 0;
  DType dtype = DType::bf16;
};
InputShape shape_in_file(const TensorFile& file, const std::string& path, const LayerSpec& spec);

/// Names in the file that no input of `motet run` has, most likely misspelt.
std::vector<std::string> unused_tensors(const TensorFile& file);

/// Tensors for `spec.layer`: "layers.N.NAME" when there, else "NAME". Throws Error(bad_input) naming file, tensor and rule.
RunInput input_from_file(const TensorFile& file, const std::string& path, const LayerSpec& spec);
/// `tokens` Gaussian hidden states in bf16.
RunInput synthetic_input(const LayerSpec& spec, std::int64_t tokens, std::uint64_t seed);

}  // namespace motet::cli
