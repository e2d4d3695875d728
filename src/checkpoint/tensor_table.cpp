// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_table.h"

#include <algorithm>
#include <numeric>

namespace motet {

TensorTable::TensorTable(std::vector<TensorInfo>& tensors) : tensors_(&tensors), order_(tensors.size()) {
  std::iota(order_.begin(), order_.end(), TensorIndex{0});
  std::sort(order_.begin(), order_.end(), [&](TensorIndex a, TensorIndex b) { return (*this)[a].name < (*this)[b].name; });
}

TensorIndex TensorTable::find(std::string_view name) const {
  const auto at = std::lower_bound(order_.begin(), order_.end(), name, [&](TensorIndex a, std::string_view b) { return (*this)[a].name < b; });
  return at != order_.end() && (*this)[*at].name == name ? *at : kNoTensor;
}

std::pair<const TensorIndex*, const TensorIndex*> TensorTable::below(std::string_view prefix) const {
  const auto head = [&](TensorIndex index) { return std::string_view((*this)[index].name).substr(0, prefix.size()); };
  const TensorIndex* const begin = order_.data();
  const TensorIndex* const end = begin + order_.size();
  const TensorIndex* const first = std::lower_bound(begin, end, prefix, [&](TensorIndex a, std::string_view b) { return head(a) < b; });
  const TensorIndex* const last = std::upper_bound(first, end, prefix, [&](std::string_view b, TensorIndex a) { return b < head(a); });
  return {first, last};
}

}  // namespace motet
