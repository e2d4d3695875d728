// SPDX-License-Identifier: Apache-2.0
// Expert bodies in fp32 over contiguous elements, and conversions between element types. Loops that compilers vectorise; a
// value depends on its own element only, so that splits never change bits.
#pragma once

#include <cstdint>

#include "motet/spec.h"

namespace motet {

/// up[i] = body(gate[i], up[i]) for i in [0, count); gate is null when the body has none. NaN in, NaN out.
void apply_body(const Activation& activation, const float* gate, float* up, std::int64_t count) noexcept;

/// The e^x of the bodies: relative error below 6 x 2^-24 for x in [-87, 88]; beyond, the value of the nearer end.
float body_exp(float x) noexcept;

/// Writes `count` fp32 values as f32 or bf16 (nearest even).
void store_as(DType dtype, const float* values, std::int64_t count, std::byte* out) noexcept;
/// Reads `count` values of bf16, f16 or f32 as fp32, times `scale` in fp32 when not null.
void load_as_f32(DType dtype, const std::byte* values, std::int64_t count, const float* scale, float* out) noexcept;

}  // namespace motet
