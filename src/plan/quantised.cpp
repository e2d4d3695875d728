// SPDX-License-Identifier: Apache-2.0
#include "plan/quantised.h"

#include <algorithm>

#include "base/math.h"
#include "plan/sizes.h"

namespace motet {
namespace {

using std::int64_t;

struct Operand {
  AreaId codes, scales;
  int64_t valid, stored;
};

TensorType tensor(AreaId area, DType dtype, Layout layout, std::vector<int64_t> valid, std::vector<int64_t> stored) {
  return {.name = std::string(name_of(area)),
          .dtype = dtype,
          .valid = std::move(valid),
          .stored = std::move(stored),
          .layout = layout,
          .rows = layout == Layout::swizzled_128x4 ? RowRule::by_index : RowRule::up_to_count};
}

TensorType scales_of(const Draft& draft, const Operand& operand) {
  const QuantisedStorage& quantised = draft.storage.quantised;
  const int64_t rows = draft.rows(), groups = ceil_div(operand.stored, quantised.group);
  if (quantised.layout == Layout::flat_scales) {
    const int64_t count = bounded_product({rows, groups});
    return tensor(operand.scales, quantised.scale, quantised.layout, {count}, {count});
  }
  const int64_t stored_rows = bounded_product({most_row_tiles(rows, draft.share.experts), 128});
  return tensor(operand.scales, quantised.scale, quantised.layout, {rows, groups}, {stored_rows, round_up(groups, 4)});
}

}  // namespace

int64_t most_row_tiles(int64_t rows, int64_t slots) noexcept {
  const int64_t used = std::min(rows, slots);  // one row each costs most: a tile per slot
  return used + (rows - used) / 128;
}

std::vector<QuantisedTensor> quantised_tensors(const Draft& draft) {
  const QuantisedStorage& quantised = draft.storage.quantised;
  std::vector<QuantisedTensor> tensors;
  if (quantised.group == 0) return tensors;
  const Operand operands[] = {
      {AreaId::permuted_codes, AreaId::permuted_scales, draft.spec.dispatch_width(), draft.stored_dispatch()},
      {AreaId::act_codes, AreaId::act_scales, draft.share.intermediate, draft.storage.intermediate}};
  const int64_t rows = draft.rows();
  for (const Operand& operand : operands) {
    tensors.push_back(
        {operand.codes, tensor(operand.codes, quantised.code, Layout::row_major, {rows, operand.valid}, {rows, operand.stored})});
    tensors.push_back({operand.scales, scales_of(draft, operand)});
  }
  if (quantised.layout == Layout::flat_scales) return tensors;  // linear scales are the same bytes
  const int64_t groups = ceil_div(std::max(operands[0].stored, operands[1].stored), quantised.group);
  tensors.push_back({AreaId::linear_scales,
                     tensor(AreaId::linear_scales, quantised.scale, Layout::linear_scales, {rows, groups}, {rows, groups})});
  return tensors;
}

}  // namespace motet
