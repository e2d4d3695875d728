// SPDX-License-Identifier: Apache-2.0
// Matrix kernels over a codec, compiled once per target: MOTET_KERNELS(format, Codec) at the end of a format's file.
//
// A codec tells how 4 stored bytes become values. It is a struct with
//   kPerDword          values per dword: 1, 2, 4, 8, in k order from the low end
//   kElementBytes      bytes per element; 0 = packed along k, never transposed
//   kMaxFew            tokens up to which `few` is not slower than `many` (measured)
//   value<S>(I)        the value of place S in 16 dwords as fp32, without block scale
//   kHasBf16Pairs      values exact in bf16: pair_along<S>(I), pairs_across(I, fold, I*) (arithmetic.h; only with the bf16 dot)
//   kStepScale         `few` sums 64 stored bytes, then multiplies by step_scale() in fp32
//   kFoldBlock         columns whose scale byte is folded into a panel exactly, by fold_f32 / fold_pairs; 0 = none
//   row_folds()        where kFoldBlock > 0: folding is exact for this row; other rows of `many` are computed by `few`
//   rows_fold()        true when it surely is for several rows, at a glance
//   kSegments          `many` sums the columns of one scale block, then multiplies in fp32 by scale()
//   finite_value<S>(I), has_nan(w, row)   optional: value() that takes NaN codes for numbers, and the look for them (arithmetic.h)
//   kTensorScale       sums are multiplied by the view's tensor_scale at the end
//   kIntUnit           optional: values are small integers times this power of two, and with kFoldBlock > 0 times a block scale.
//                      Then also kMaxInt, the largest of them (12 x 32767 x 32 < 2^24), ints(I, I*), 16 dwords as signed bytes in
//                      one or two vectors, and for `few` kIntVectors, lane_bytes<V>(), last_lane_bytes<V>() (matmul_int_few.h)
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/matmul_few.h"
#include "kernels/matmul_int_many.h"
#include "kernels/matmul_many.h"
#if MOTET_HAS_TILES
#include "kernels/matmul_tile.h"
#endif

namespace motet::MOTET_TARGET {
namespace {

#if MOTET_TILE_MODEL
inline constexpr bool kOnlyTiles = true;  // the other sets are those of another target
#else
inline constexpr bool kOnlyTiles = false;
#endif

template <class Codec, class A>
constexpr KernelSet kernel_set([[maybe_unused]] std::string_view format, [[maybe_unused]] std::string_view target) {
  if constexpr (kOnlyTiles)
    return {};
  else
    return {.format = format,
            .target = target,
            .arithmetic = A::kName,
            .activation = A::kActivation,
            .k_unit = 32,
            .max_few = Codec::kMaxFew,
            .folds = Codec::kFoldBlock > 0,
            .scratch_bytes = scratch_bytes<Codec, A>,
            .few = few<Codec, A>,
            .many = many<Codec, A>,
            .few_reads = few_reads<Codec>};
}

template <class Codec>
constexpr KernelSet bf16_dot_set([[maybe_unused]] std::string_view format, [[maybe_unused]] std::string_view target) {
#if MOTET_HAS_BF16_DOT
  if constexpr (Codec::kHasBf16Pairs) return kernel_set<Codec, Bf16Dot>(format, target);
#endif
  return {};
}

/// kSplit: bf16x2_tile, else bf16_tile.
template <class Codec, bool kSplit>
constexpr KernelSet tile_set([[maybe_unused]] std::string_view format, [[maybe_unused]] std::string_view target) {
#if MOTET_HAS_TILES
  if constexpr (Codec::kHasBf16Pairs)
    return {.format = format,
            .target = target,
            .arithmetic = kSplit ? KernelArithmetic::bf16x2_tile : KernelArithmetic::bf16_tile,
            .activation = kSplit ? DType::f32 : DType::bf16,
            .many_encodes = kSplit,
            .k_unit = 32,
            .folds = Codec::kFoldBlock > 0,
            .scratch_bytes = tile_scratch_bytes<Codec, kSplit>,
            .many = kSplit ? many_bf16x2_tile<Codec> : many_bf16_tile<Codec>,
            .few_reads = few_reads<Codec>};
#endif
  return {};
}

/// int16_dot or int8_dot.
template <class Codec, int kBits>
constexpr KernelSet int_set([[maybe_unused]] std::string_view format, [[maybe_unused]] std::string_view target) {
  if constexpr (kHasInts<Codec> && !kOnlyTiles)
    return {.format = format,
            .target = target,
            .arithmetic = kBits == 16 ? KernelArithmetic::int16_dot : KernelArithmetic::int8_dot,
            .many_encodes = true,
            .max_few = kMaxFewInt<kBits / 8>,
            .scratch_bytes = int_scratch_bytes<Codec, kBits / 8>,
            .few = int_few<Codec, kBits / 8>,
            .many = int_many<Codec, kBits / 8>,
            .few_reads = few_reads<Codec>};
  else
    return {};
}

}  // namespace
}  // namespace motet::MOTET_TARGET

#define MOTET_TEXT_OF(name) #name
#define MOTET_TEXT(name) MOTET_TEXT_OF(name)
#define MOTET_KERNELS(name, Codec)                                                                                     \
  namespace motet {                                                                                                    \
  namespace format_tag {                                                                                               \
  struct name;                                                                                                         \
  }                                                                                                                    \
  namespace target_tag {                                                                                               \
  struct MOTET_TARGET;                                                                                                 \
  }                                                                                                                    \
  namespace MOTET_TARGET {                                                                                             \
  namespace {                                                                                                          \
  constexpr KernelSet kSets[kArithmetics] = {                                                                          \
      kernel_set<Codec, F32>(#name, MOTET_TEXT(MOTET_TARGET)), bf16_dot_set<Codec>(#name, MOTET_TEXT(MOTET_TARGET)),   \
      tile_set<Codec, false>(#name, MOTET_TEXT(MOTET_TARGET)), tile_set<Codec, true>(#name, MOTET_TEXT(MOTET_TARGET)), \
      int_set<Codec, 16>(#name, MOTET_TEXT(MOTET_TARGET)),     int_set<Codec, 8>(#name, MOTET_TEXT(MOTET_TARGET))};    \
  }                                                                                                                    \
  }                                                                                                                    \
  template <>                                                                                                          \
  const KernelSet* kernels_of<format_tag::name, target_tag::MOTET_TARGET>() noexcept {                                 \
    return MOTET_TARGET::kSets;                                                                                        \
  }                                                                                                                    \
  }
