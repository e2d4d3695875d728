// SPDX-License-Identifier: Apache-2.0
// A weight format: facts, spellings in checkpoints, exact decoder, encoder, synthetic draw. One file src/formats/NAME.cpp and one
// line in formats.inc: nothing else names a format.
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

/// One way in which checkpoints spell the tensors of a matrix of module X: suffixes of X ("X.weight"; a stack of all experts also
/// joins them with '_', or is X itself) and their dtypes. The tensors that are there decide which spelling a matrix has; shapes
/// follow from the facts and are checked, not guessed from.
struct Spelling {
  std::string_view codes = "weight";
  std::vector<DType> code_dtypes = {};
  std::string_view scales = {};            ///< one per block: [ceil(rows / block_rows), ceil(cols / block_cols)]; "" = none
  std::vector<DType> scale_dtypes = {};    ///< the first is what scales stored as U8 are
  std::string_view tensor_scale = {};      ///< F32, [] or [1]; "" = none
  bool reciprocal = false;                 ///< the tensor scale is stored as its reciprocal
  std::string_view input_scale = {};       ///< F32, [] or [1], of activations: told when it is absent, never used
  bool stacks = false;                     ///< one tensor may hold all experts along a first axis
  bool split_codes = false;                ///< codes are [rows, blocks, bytes of a block] instead of [rows, bytes of a row]
  bool configured_blocks = false;          ///< the config gives the extents of a scale block; without them it is no such matrix
};

struct SyntheticRandom;
struct SyntheticRow;

/// Draws synthetic weights straight as codes, much faster than encode() and transposed too (formats/synthetic_draw.h).
/// codes null: values are drawn in fp32 and encoded.
struct SyntheticDraw {
  void (*codes)(SyntheticRandom& random, const SyntheticRow& row) noexcept = nullptr;
  double codes_rms = 1;                ///< root mean square of the drawn codes
  void (*scale)(SyntheticRandom& random, int exponent, std::byte* out) noexcept = nullptr;   ///< near 2^exponent
  double scales_rms = 1;               ///< of the scales drawn for exponent 0: used by formats with a tensor scale
};

struct Format {
  FormatFacts facts;
  std::vector<Spelling> spellings;
  /// Exact values of W[row, col .. col + count): double, own table, shares no code with kernels. Reads only what it returns.
  void (*decode)(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept;
  /// Encodes row-major values [rows, cols], rounding to the format; block scales chosen per block.
  void (*encode)(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out);
  /// The first value rule that the stored scales break ("scale NaN at row 3, block 7"), or nothing. Reads all scales and no
  /// codes: a code that is NaN gives NaN in its row's outputs of every token that meets the expert.
  std::optional<std::string> (*check_values)(const WeightView& view);
  SyntheticDraw synthetic = {};
};

/// Several values per byte along the reduction axis: lies in rows only, col_stride 0.
inline bool is_packed(const FormatFacts& facts) noexcept { return facts.values_per_block > 1; }
/// Elements without scales.
inline bool is_plain(const FormatFacts& facts) noexcept { return facts.scale_bytes == 0; }
inline bool has_tensor_scale(const Format& format) noexcept {
  return !format.spellings.empty() && !format.spellings.front().tensor_scale.empty();
}

/// In the order of formats.inc.
const std::vector<const Format*>& all_formats();
/// null when unknown.
const Format* find_format(std::string_view name) noexcept;

}  // namespace motet
