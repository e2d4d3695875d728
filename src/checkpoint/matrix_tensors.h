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
#include "formats/format.h"

namespace motet {

/// Tensors of one module, or of one stack of all experts' modules.
struct MatrixTensors {
  std::string format;                  ///< a name of formats(), or of a form that is not built; "" = the module has no weight
  const Format* built = nullptr;       ///< the format; null when it is not built
  const Spelling* spelling = nullptr;  ///< of `built`
  TensorIndex codes = kNoTensor, scales = kNoTensor, tensor_scale = kNoTensor, input_scale = kNoTensor, bias = kNoTensor;
  DType scale_dtype = DType::f32;      ///< of views: bytes stored as U8 are of the spelling's type
  std::int64_t block_rows = 1, block_cols = 1;   ///< 0 = all
  std::vector<TensorIndex> carried;    ///< known and not needed: static activation scales of other runtimes, stored shapes
  std::vector<TensorIndex> unread;     ///< not built: all tensors but the bias; `codes` is the first of them
};

/// What is to be found, for shapes and sentences.
struct MatrixWish {
  std::string module;                  ///< full name without suffix
  bool stacked = false;                ///< the tensors hold all experts along their first axis
  std::int64_t experts = 1, rows = 0, cols = 0;
  bool transposed = false;             ///< of the unquantised form
};

/// Finds the tensors of a module by the spellings of all_formats() and checks dtypes and all shapes against the wish. format is
/// "" when nothing is there; a form that is known and not built comes back by name, unchecked. Throws Error(bad_input) naming
/// tensor and rule.
MatrixTensors find_matrix(const TensorTable& table, const MatrixWish& wish, const QuantizationHints& hints);

/// "format int8 of tensor 'x' is not built: take a release ..."
std::string not_built_text(std::string_view format, const TensorInfo& tensor);

/// Throws Error(bad_input) unless the tensor has this shape; `why` says where the shape comes from.
void check_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape, const std::function<std::string()>& why);
/// The same for F32, BF16 or F16.
void check_float(const TensorInfo& tensor);

}  // namespace motet
