// SPDX-License-Identifier: Apache-2.0
// Tensors of a checkpoint, found by name and by the beginning of a name. Refers to the vector it was made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motet/checkpoint.h"

namespace motet {

/// Index of a tensor in Checkpoint::tensors(), -1 = there is none.
using TensorIndex = std::int32_t;
inline constexpr TensorIndex kNoTensor = -1;

class TensorTable {
 public:
  explicit TensorTable(std::vector<TensorInfo>& tensors);

  TensorInfo& operator[](TensorIndex index) const { return (*tensors_)[static_cast<std::size_t>(index)]; }
  std::int64_t size() const { return static_cast<std::int64_t>(tensors_->size()); }
  TensorIndex find(std::string_view name) const;
  /// Indices of all tensors whose name begins with `prefix`, in order of name: a slice of the sorted list.
  std::pair<const TensorIndex*, const TensorIndex*> below(std::string_view prefix) const;
  bool any_below(std::string_view prefix) const { const auto range = below(prefix); return range.first != range.second; }

 private:
  std::vector<TensorInfo>* tensors_;
  std::vector<TensorIndex> order_;
};

}  // namespace motet
