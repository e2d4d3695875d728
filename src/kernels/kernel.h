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

/// Kernel arithmetics; sums are fp32 in all of them.
///   f32          fp32 activations, weights widened to fp32, FMA
///   bf16_dot     bf16 activations, weights exact in bf16, pairs summed by the bf16 dot instruction
///   bf16_tile    the same on the tile unit (AMX)
///   bf16x2_tile  the same on activations split into two bf16, high and low: x = high + low to 2^-17
///   int16_dot    activations as 16-bit integers with one scale per 32, codes that are small integers: sums of 32 are exact
///   int8_dot     the same with 8-bit integers
/// Scales are applied in fp32 per block unless their product with a code is exact in the type that holds it.
enum class KernelArithmetic { f32, bf16_dot, bf16_tile, bf16x2_tile, int16_dot, int8_dot };
inline constexpr KernelArithmetic kAllArithmetics[] = {KernelArithmetic::f32,         KernelArithmetic::bf16_dot,
                                                       KernelArithmetic::bf16_tile,   KernelArithmetic::bf16x2_tile,
                                                       KernelArithmetic::int16_dot,   KernelArithmetic::int8_dot};
inline constexpr int kArithmetics = 6;
inline constexpr std::int64_t kActivationGroup = 32;  ///< neighbouring activations under one scale of int16_dot and int8_dot

struct MatmulArgs {
  const WeightView* weight = nullptr;
  std::int64_t row_begin = 0, row_end = 0;  ///< `many` on a packed matrix: row_begin is a multiple of 16
  const std::byte* x = nullptr;        ///< prepared activations: token t at x + t * x_stride, 64-byte aligned
  std::int64_t x_stride = 0;           ///< bytes; >= round_up(cols, k_unit) elements; elements past cols are zero
  DType x_dtype = DType::f32;          ///< f32 or bf16, one that the function takes
  std::int64_t tokens = 0;
  float* out = nullptr;                ///< fp32, token t at out + t * out_stride (elements)
  std::int64_t out_stride = 0;
  std::byte* scratch = nullptr;        ///< 64-byte aligned, scratch_bytes(cols) of the calling thread
  bool encoded = false;                ///< scratch is as the last call left it, which had the same function, x, tokens and cols: what
                                       ///< the kernel made of the activations is still there
};

struct KernelSet {
  std::string_view format, target;
  KernelArithmetic arithmetic = KernelArithmetic::f32;
  DType activation = DType::f32;       ///< element type that `many` reads as it lies
  bool many_encodes = false;           ///< `many` takes f32 and bf16 rows alike and encodes them into scratch; `few` always does
  std::int64_t k_unit = 32;            ///< x rows are zero-padded to a multiple of this many elements
  int max_few = 0;                     ///< `few` takes 1..max_few tokens; 0 = there is no `few`
  bool folds = false;                  ///< `many` folds block scales into the weights where that is exact for a whole row; a row where it is
                                       ///< not (its own bytes decide) is summed in the order of `few`
  std::int64_t (*scratch_bytes)(std::int64_t cols) noexcept = nullptr;   ///< bytes that a call needs for this reduction length
  /// Both take packed matrices too (formats/packed.h). `few`: straight from the stored bytes, several rows in flight. Null when the arithmetic has none.
  void (*few)(const MatmulArgs&) noexcept = nullptr;
  /// Any number of tokens: decodes a slab of rows once into panels in scratch, then tiles over tokens. Null when the arithmetic has none.
  void (*many)(const MatmulArgs&) noexcept = nullptr;
  /// True when `few` can read this matrix (for example: contiguous along k).
  bool (*few_reads)(const WeightView&) noexcept = nullptr;

  bool many_takes(DType x) const noexcept { return many != nullptr && (many_encodes || x == activation); }
};

/// The set for a format, target and arithmetic, or null.
const KernelSet* find_kernels(std::string_view format, std::string_view target, KernelArithmetic arithmetic) noexcept;

std::string_view name_of(KernelArithmetic) noexcept;   ///< the enumerator as written
/// Null when there is no such name.
const KernelArithmetic* arithmetic_named(std::string_view name) noexcept;

}  // namespace motet
