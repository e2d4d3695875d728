// SPDX-License-Identifier: Apache-2.0
// The kernel seam: codec x target x arithmetic x token count. One KernelSet per (format, target, arithmetic).
//
// A kernel multiplies prepared activations by rows of one stored weight matrix:
//   out[t, n - row_begin] = sum_k W[n, k] * x[t, k]      for n in [row_begin, row_end), t in [0, tokens)
// with fp32 accumulation in an order that depends only on k (and on which of `few` and `many` ran), never on the number of
// tokens, the token's place in the batch, on row_begin, or on threads. No bias, no activation function, no routing weight: those are the backend's.
// Kernels are noexcept, allocate nothing, read no byte outside the matrix's own codes and scales, and expect flush-to-zero off.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/weight_view.h"

namespace motet {

/// Kernel arithmetics. f32: fp32 activations, weights widened to fp32, FMA. bf16_dot: bf16 activations, weights exact in
/// bf16 (scales applied in fp32 per block unless the product is exact in bf16), pairs summed by the bf16 dot into fp32.
enum class KernelArithmetic { f32, bf16_dot };

struct MatmulArgs {
  const WeightView* weight = nullptr;
  std::int64_t row_begin = 0, row_end = 0;
  const std::byte* x = nullptr;        ///< prepared activations: token t at x + t * x_stride, 64-byte aligned
  std::int64_t x_stride = 0;           ///< bytes; >= round_up(cols, k_unit) elements; elements past cols are zero
  std::int64_t tokens = 0;
  float* out = nullptr;                ///< fp32, token t at out + t * out_stride (elements)
  std::int64_t out_stride = 0;
  std::byte* scratch = nullptr;        ///< 64-byte aligned, scratch_bytes(cols) of the calling thread
};

struct KernelSet {
  std::string_view format, target;
  KernelArithmetic arithmetic = KernelArithmetic::f32;
  DType activation = DType::f32;       ///< element type of x
  std::int64_t k_unit = 32;            ///< x rows are zero-padded to a multiple of this many elements
  int max_few = 0;                     ///< `few` takes 1..max_few tokens; 0 = there is no `few` for this layout
  bool folds = false;                  ///< `many` folds block scales into the weights where that is exact for a whole row; a row where it is
                                       ///< not (its own bytes decide) is summed in the order of `few`
  std::int64_t (*scratch_bytes)(std::int64_t cols) noexcept = nullptr;   ///< bytes that `many` needs for this reduction length
  /// Straight from the stored bytes, several rows in flight. Null when the layout (transposed) has none.
  void (*few)(const MatmulArgs&) noexcept = nullptr;
  /// Any number of tokens: decodes a slab of rows once into panels in scratch, then tiles over tokens.
  void (*many)(const MatmulArgs&) noexcept = nullptr;
  /// True when `few` can read this matrix (for example: contiguous along k).
  bool (*few_reads)(const WeightView&) noexcept = nullptr;
};

/// The set for a format, target and arithmetic, or null.
const KernelSet* find_kernels(std::string_view format, std::string_view target, KernelArithmetic arithmetic) noexcept;

std::string_view name_of(KernelArithmetic) noexcept;   ///< "f32", "bf16_dot"

}  // namespace motet
