// SPDX-License-Identifier: Apache-2.0
// The two arithmetics over the vectors of one target: how a codec's values become multiplicands and how products are summed.
//
// kUnit neighbouring elements of the reduction axis share a lane: 1 (f32) or a pair (bf16_dot). A codec's dword holds P values;
// `along` spreads 16 dwords of one row into P / kUnit vectors for `few`, `across` those of 16 rows for a panel of `many`:
//   along   vector s, lane j: elements j P + s                      (f32)     j P + s and j P + s + P / 2     (bf16_dot)
//   across  vector s, lane r: element s of row r's dword            (f32)     elements 2 s and 2 s + 1        (bf16_dot)
#pragma once

#include "kernels/kernel.h"
#include "kernels/vec.h"

namespace motet::MOTET_TARGET {
namespace {

/// The codec decodes NaN codes more cheaply by looking for them once per row: finite_value() takes them for numbers, has_nan() finds
/// them. Only `few` in f32 asks for it.
template <class Codec>
inline constexpr bool kLooksForNan = requires(const WeightView& w, std::int64_t row) { Codec::has_nan(w, row); };

struct F32 {
  static constexpr KernelArithmetic kName = KernelArithmetic::f32;
  static constexpr DType kActivation = DType::f32;
  static constexpr std::int64_t kUnit = 1, kBytes = 4;
  static constexpr int kFewSums = kFewSumsF32;
  using Vector = F;

  template <class Codec, int S>
  MOTET_VEC F along(const Codec& codec, I raw) {
    if constexpr (kLooksForNan<Codec>) return codec.template finite_value<S>(raw);
    else return codec.template value<S>(raw);
  }
  template <class Codec>
  MOTET_VEC auto fold(I scale) {
    return Codec::fold_f32(scale);
  }
  template <class Codec, class Fold>
  MOTET_VEC void across(const Codec& codec, I raw, const Fold& fold, F* out) {
    values<0>(codec, raw, out);
    if constexpr (Codec::kFoldBlock > 0) {
      for (int s = 0; s < Codec::kPerDword; ++s) out[s] = mul(out[s], fold);
    }
  }
  template <int S, class Codec>
  MOTET_VEC void values(const Codec& codec, I raw, F* out) {
    out[S] = codec.template value<S>(raw);
    if constexpr (S + 1 < Codec::kPerDword) values<S + 1>(codec, raw, out);
  }
  MOTET_VEC F load_x(const std::byte* x) { return load(reinterpret_cast<const float*>(x)); }
  MOTET_VEC F load_panel(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  MOTET_VEC void store_panel(std::byte* p, F v) { store(reinterpret_cast<float*>(p), v); }
  MOTET_VEC F broadcast_x(const std::byte* x) {
    float value;
    __builtin_memcpy(&value, x, sizeof value);
    return broadcast(value);
  }
  MOTET_VEC F first(F weights, F x) { return mul(weights, x); }
  MOTET_VEC F add(F sums, F weights, F x) { return fma(weights, x, sums); }
};

#if MOTET_HAS_BF16_DOT
struct Bf16Dot {
  static constexpr KernelArithmetic kName = KernelArithmetic::bf16_dot;
  static constexpr DType kActivation = DType::bf16;
  static constexpr std::int64_t kUnit = 2, kBytes = 2;
  static constexpr int kFewSums = kFewSumsBf16Dot;
  using Vector = I;

  template <class Codec, int S>
  MOTET_VEC I along(const Codec& codec, I raw) {
    return codec.template pair_along<S>(raw);
  }
  template <class Codec>
  MOTET_VEC auto fold(I scale) {
    return Codec::fold_pairs(scale);
  }
  template <class Codec, class Fold>
  MOTET_VEC void across(const Codec& codec, I raw, const Fold& fold, I* out) {
    codec.pairs_across(raw, fold, out);
  }
  MOTET_VEC I load_x(const std::byte* x) { return iload(x); }
  MOTET_VEC I load_panel(const std::byte* p) { return iload(p); }
  MOTET_VEC void store_panel(std::byte* p, I v) { istore(p, v); }
  MOTET_VEC I broadcast_x(const std::byte* x) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof pair);
    return ibroadcast(pair);
  }
  MOTET_VEC F first(I weights, I x) { return dot(zero(), weights, x); }
  MOTET_VEC F add(F sums, I weights, I x) { return dot(sums, weights, x); }
};
#endif

}  // namespace
}  // namespace motet::MOTET_TARGET
