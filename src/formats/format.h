// SPDX-License-Identifier: Apache-2.0
// A weight format: facts, exact decoder, encoder. One file src/formats/NAME.cpp and one line in formats.inc.
//
// Each format file is compiled once plainly (facts, decode, encode: this header) and once per target with that target's flags
// and MOTET_TARGET defined (its kernel instances: kernels/matmul.h). docs/formats/NAME.md describes the bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_view.h"
#include "plan/catalog.h"

namespace motet {

/// Bytes of an encoded matrix, laid out as a checkpoint lays them out.
struct EncodedMatrix {
  std::vector<std::byte> codes, scales;
  WeightView view;                     ///< points into codes and scales
};

struct Format {
  FormatFacts facts;
  /// Exact values of W[row, col .. col + count): double, own table, shares no code with kernels. Reads only what it returns.
  void (*decode)(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept;
  /// Encodes row-major values [rows, cols], rounding to the format; block scales chosen per block.
  void (*encode)(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out);
  /// The first value rule that the stored scales break ("scale NaN at row 3, block 7"), or nothing. Reads all scales.
  std::optional<std::string> (*check_values)(const WeightView& view);
};

/// In the order of formats.inc.
const std::vector<const Format*>& all_formats();
/// null when unknown.
const Format* find_format(std::string_view name) noexcept;

}  // namespace motet
