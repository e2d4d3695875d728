// SPDX-License-Identifier: Apache-2.0
// The lists: formats in the order of formats.inc, and their kernel sets for every target of targets.inc.
#include <cmath>

#include "formats/format.h"
#include "formats/plain_matrix.h"
#include "kernels/kernel_table.h"

namespace motet {

#define MOTET_FORMAT(name)           \
  extern const Format format_##name; \
  namespace format_tag {             \
  struct name;                       \
  }
#include "formats/formats.inc"
#undef MOTET_FORMAT
#define MOTET_TARGET_LINE(name, flags, needs) \
  namespace target_tag {                      \
  struct name;                                \
  }
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE

namespace {

template <class... Tags>
struct TagList {};
using FormatTags = TagList<void
#define MOTET_FORMAT(name) , format_tag::name
#include "formats/formats.inc"
#undef MOTET_FORMAT
                           >;
using TargetTags = TagList<void
#define MOTET_TARGET_LINE(name, flags, needs) , target_tag::name
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
                           >;

const KernelSet* found(const KernelSet* sets, std::string_view format, std::string_view target,
                       KernelArithmetic arithmetic) noexcept {
  if (sets[0].format != format || sets[0].target != target) return nullptr;
  const KernelSet* set = sets + static_cast<int>(arithmetic);
  return set->few != nullptr || set->many != nullptr ? set : nullptr;
}

template <class FormatTag, class... Targets>
const KernelSet* find_target(TagList<void, Targets...>, std::string_view format, std::string_view target,
                             KernelArithmetic arithmetic) noexcept {
  const KernelSet* result = nullptr;
  ((result = found(kernels_of<FormatTag, Targets>(), format, target, arithmetic)) || ...);
  return result;
}

template <class... Formats>
const KernelSet* find_any(TagList<void, Formats...>, std::string_view format, std::string_view target,
                          KernelArithmetic arithmetic) noexcept {
  const KernelSet* result = nullptr;
  ((result = find_target<Formats>(TargetTags{}, format, target, arithmetic)) || ...);
  return result;
}

}  // namespace

const std::vector<const Format*>& all_formats() {
  static const std::vector<const Format*> list = {
#define MOTET_FORMAT(name) &format_##name,
#include "formats/formats.inc"
#undef MOTET_FORMAT
  };
  return list;
}

const Format* find_format(std::string_view name) noexcept {
  for (const Format* format : all_formats())
    if (format->facts.name == name) return format;
  return nullptr;
}

const KernelSet* find_kernels(std::string_view format, std::string_view target, KernelArithmetic arithmetic) noexcept {
  return find_any(FormatTags{}, format, target, arithmetic);
}

std::string value_at_block(std::string_view what, std::int64_t row, std::int64_t block) {
  return std::string(what) + " at row " + std::to_string(row) + ", block " + std::to_string(block);
}

std::optional<std::string> check_packed_scales(const WeightView& view, std::string_view format, DType dtype, std::int64_t block) {
  const std::string name(format);
  if (view.scales == nullptr) return name + " needs block scales and has none";
  if (view.scale_dtype != dtype && view.scale_dtype != DType::u8)
    return name + " scales must be " + std::string(name_of(dtype)) + " or U8 bytes, not " + std::string(name_of(view.scale_dtype));
  if (view.col_stride != 0 || view.block_rows != 1 || view.block_cols != block || view.scale_col_stride != 1)
    return name + " needs codes packed along the reduction axis and one scale byte per " + std::to_string(block) +
           " of them, side by side; these blocks are of " + std::to_string(view.block_rows) + " x " +
           std::to_string(view.block_cols);
  return std::nullopt;
}

std::optional<std::pair<std::int64_t, std::int64_t>> find_scale_from(const WeightView& view, std::byte limit) {
  const std::int64_t blocks = (view.cols + view.block_cols - 1) / view.block_cols;
  for (std::int64_t row = 0; row < view.rows; ++row) {
    const std::byte* scales = view.scales + row * view.scale_row_stride;
    bool found = false;  // no early exit: compilers vectorise this loop
    for (std::int64_t b = 0; b < blocks; ++b) found |= scales[b] >= limit;
    for (std::int64_t b = 0; found && b < blocks; ++b)
      if (scales[b] >= limit) return std::pair{row, b};
  }
  return std::nullopt;
}

std::optional<std::string> check_tensor_scale(double scale) {
  if (std::isfinite(scale) && scale > 0) return std::nullopt;
  return "tensor scale " + std::to_string(scale) + " is not finite and above zero";
}

}  // namespace motet
