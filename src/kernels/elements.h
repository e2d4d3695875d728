// SPDX-License-Identifier: Apache-2.0
// Expert bodies in fp32 over contiguous elements, and conversions between element types: loops that compilers vectorise, compiled
// once per target. A value depends on its own element only and no product is contracted, so that neither splits nor targets change
// a bit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "motet/spec.h"

namespace motet {

/// One row of a sum of rows. Exactly one of `stored` and `unrounded` is not null.
struct SumTerm {
  const std::byte* stored = nullptr;  ///< in the wire type
  const float* unrounded = nullptr;   ///< rounded to the wire type as it is read
  const float* weight = nullptr;      ///< null = no product
};

/// Where results are stored: in the caches, or `around` them where whoever reads next would not find them there. Either way they
/// are ordered before later stores of the thread.
enum class Stores { cached, around };

struct ElementKernels {
  std::string_view target;
  /// up[i] = body(gate[i], up[i]) for i in [0, count); gate is null when the body has none. NaN in, NaN out.
  void (*apply_body)(const Activation& activation, const float* gate, float* up, std::int64_t count) noexcept;
  /// The e^x of the bodies: relative error below 6 x 2^-24 for x in [-87, 88]; beyond, the value of the nearer end.
  float (*body_exp)(float x) noexcept;
  /// Writes `count` fp32 values as f32 or bf16 (nearest even).
  void (*store_as)(DType dtype, const float* values, std::int64_t count, std::byte* out) noexcept;
  /// Reads `count` values of bf16, f16 or f32 as fp32, times `scale` in fp32 when not null.
  void (*load_as_f32)(DType dtype, const std::byte* values, std::int64_t count, const float* scale, float* out) noexcept;
  void (*copy)(const std::byte* from, std::int64_t bytes, std::byte* out, Stores stores) noexcept;
  /// store_as, to where `stores` says.
  void (*send_as)(DType dtype, const float* values, std::int64_t count, std::byte* out, Stores stores) noexcept;
  /// out[i] = s, where s = +0, then s = fp32(s + fp32(w y)) in order of the terms; wire f32 or bf16. `out` may be an `unrounded`.
  void (*sum_rows)(DType wire, std::span<const SumTerm> terms, std::int64_t count, float* out, Stores stores) noexcept;
};

/// Of a target of targets.inc; null when there is no such target.
const ElementKernels* find_elements(std::string_view target) noexcept;

/// One strong symbol per target, defined where this folder's elements.cpp is compiled with that target's flags.
namespace target_tag {}  // namespace target_tag
template <class TargetTag>
const ElementKernels& elements_of() noexcept;

}  // namespace motet
