// SPDX-License-Identifier: Apache-2.0
// Activation encoders: fp32 rows to low-bit codes with one scale per group of consecutive columns, scales linear and token-major.
//
// All arithmetic is fp32 in the order written here, codes round to nearest with ties to even and saturate: the bytes depend on
// the row alone. Columns from `cols` to `stored_cols` are encoded as zeros, and so is the end of a last group that is not full.
// A group that holds a NaN or an infinity gets scale NaN, so that all of it decodes to NaN; other groups are not touched.
// Every function writes every byte of codes and scales, allocates nothing, is thread-safe and expects flush-to-zero off. Extents
// are checked.
// Bytes, bounds and examples: docs/formats/activations.md.
#pragma once

#include <cstdint>

#include "formats/activation/scale_layout.h"

namespace motet {

inline constexpr std::int64_t kFp8Group = 128;  ///< columns that share a scale, one row
inline constexpr std::int64_t kMxfp8Block = 32;
inline constexpr std::int64_t kNvfp4Block = 16;
/// Largest |decoded - x| / |x| of mxfp8 where the code is normal: half a unit in the last of E4M3's three places.
inline constexpr double kMxfp8Step = 0x1p-4;

/// [rows, cols] fp32, row-major and contiguous. Zero rows may have null values.
struct ActivationRows {
  const float* values = nullptr;
  std::int64_t rows = 0, cols = 0;
};

/// Where codes and scales go: stored_cols >= cols, scales [rows, ceil(stored_cols / group)].
template <class Scale>
struct EncodedRows {
  std::uint8_t* codes = nullptr;  ///< [rows, stored_cols] bytes; 4-bit: [rows, stored_cols / 2], low nibble = even column
  std::int64_t stored_cols = 0;   ///< even for 4-bit codes
  LinearScales<Scale> scales;
};

/// fp8 in groups of 128 (DeepSeek): s = max(amax, 1e-4) / 448, code = e4m3(x / s), value = code * s.
void encode_fp8_1x128(const ActivationRows& x, const EncodedRows<float>& out) noexcept;
/// The same with s rounded up to a power of two, stored as its exponent byte.
void encode_fp8_1x128(const ActivationRows& x, const EncodedRows<E8m0>& out) noexcept;

/// mxfp8 in blocks of 32: scale 2^e, the smallest with amax / 2^e <= 448, e >= -127; code = e4m3(x / 2^e). A block of zeros is
/// byte 0, codes 0.
void encode_mxfp8(const ActivationRows& x, const EncodedRows<E8m0>& out) noexcept;

/// Whether an input scale keeps every step of encode_nvfp4 within fp32: 2^-100 <= input_scale <= 2^100.
bool nvfp4_input_scale_ok(float input_scale) noexcept;
/// nvfp4 in blocks of 16 with the tensor's input scale: g = 1 / input_scale, sf = e4m3(g * amax / 6),
/// code = e2m1(x * (1 / (sf * (1 / g)))), value = code * sf * input_scale. Where sf is 0 all codes are 0.
/// Requires nvfp4_input_scale_ok(input_scale) (checked).
void encode_nvfp4(const ActivationRows& x, float input_scale, const EncodedRows<E4m3>& out) noexcept;

}  // namespace motet
