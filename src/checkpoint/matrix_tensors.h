// SPDX-License-Identifier: Apache-2.0
// Which tensors hold one stored matrix, in which format: decided by the tensors that are there, hinted by the config.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/tensor_table.h"

namespace motet {

/// Tensors of one module, or of one stack of all experts' modules.
struct MatrixTensors {
  std::string_view format;             ///< a name of formats(); "" = the module has no tensor
  bool stack_axes = false;             ///< gpt-oss spelling: _blocks [E, N, K/32, 16] and _scales
  TensorIndex codes = kNoTensor, scales = kNoTensor, tensor_scale = kNoTensor, input_scale = kNoTensor, bias = kNoTensor;
  bool reciprocal = false;             ///< the tensor scale is stored as its reciprocal (compressed-tensors)
  std::int64_t block_rows = 1, block_cols = 1;
  std::vector<TensorIndex> carried;    ///< known and not needed: static activation scales of other runtimes, stored shapes
};

/// What is to be found, for shapes and sentences.
struct MatrixWish {
  std::string module;                  ///< full name without suffix
  bool stacked = false;                ///< the tensors hold all experts along their first axis
  std::int64_t experts = 1, rows = 0, cols = 0;
  bool transposed = false;             ///< of the unquantised form
};

/// Finds the tensors of a module and checks dtypes and all shapes against the wish. format is "" when nothing is there.
/// Throws Error(not_supported) naming the format when it is not built, Error(bad_input) naming tensor and rule.
MatrixTensors find_matrix(const TensorTable& table, const MatrixWish& wish, const QuantizationHints& hints);

/// Throws Error(bad_input) unless the tensor has this shape; `why` says where the shape comes from.
void check_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape, const std::function<std::string()>& why);
/// The same for F32, BF16 or F16.
void check_float(const TensorInfo& tensor);

}  // namespace motet
