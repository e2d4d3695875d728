// SPDX-License-Identifier: Apache-2.0
// Scalar number types of checkpoints, converted by their formulas: bf16, f16, e4m3fn, e5m2, e8m0, e2m1.
//
// Every encoder rounds to nearest, ties to the even code, with integer arithmetic: the result does not depend on the rounding
// mode or on flush-to-zero. Decoders are exact. Everything is constexpr and always inlined: objects compiled for a wide
// target that include this header export no weak copy of it.
// Formats: OCP Microscaling v1.0 and OCP FP8 v1.0 (FN variant: no infinity), IEEE 754 binary16.
#pragma once

#include <cstdint>
#include <cstring>

namespace motet {

#define MOTET_NUMBER [[nodiscard, gnu::always_inline]] inline constexpr

MOTET_NUMBER std::uint32_t bits_of_f32(float value) noexcept { return __builtin_bit_cast(std::uint32_t, value); }
MOTET_NUMBER float f32_of_bits(std::uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }

/// A value of type T at any address: mapped tensors are aligned to one byte.
template <class T>
[[nodiscard, gnu::always_inline]] inline T load_unaligned(const void* address) noexcept {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

namespace numbers {

/// Magnitude bits of a float rounded to a format with `mantissa` stored bits and exponent bias `bias`, subnormals kept, no upper
/// limit: the caller saturates or maps to infinity. Requires a finite value; `magnitude` has the sign bit clear.
MOTET_NUMBER std::uint32_t round_magnitude(std::uint32_t magnitude, int mantissa, int bias) noexcept {
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int stored = exponent > 1 - bias ? exponent : 1 - bias;  // below the smallest normal the step stops shrinking
  const int shift = 23 - mantissa + (stored - exponent);
  if (magnitude < 0x00800000u || shift > 24) return 0;  // below half of the smallest subnormal
  const std::uint32_t significand = (magnitude & 0x007FFFFFu) | 0x00800000u;
  const std::uint32_t odd = (significand >> shift) & 1u;
  const std::uint32_t rounded = (significand + (1u << (shift - 1)) - 1u + odd) >> shift;
  return rounded + (static_cast<std::uint32_t>(stored + bias - 1) << mantissa);  // a carry moves into the exponent field
}

/// Value of a finite code: e == 0 -> m * 2^(1 - bias - mantissa), else (1 + m / 2^mantissa) * 2^(e - bias). Exact, and
/// normal in fp32 for the formats here, so flush-to-zero cannot change it.
MOTET_NUMBER float decode_magnitude(std::uint32_t code, int mantissa, int bias) noexcept {
  const std::uint32_t exponent = code >> mantissa;
  const std::uint32_t fraction = code & ((1u << mantissa) - 1u);
  const std::uint32_t significand = exponent == 0 ? fraction : fraction + (1u << mantissa);
  const int power = static_cast<int>(exponent == 0 ? 1 : exponent) - bias - mantissa;
  return static_cast<float>(significand) * f32_of_bits(static_cast<std::uint32_t>(power + 127) << 23);
}

MOTET_NUMBER float with_sign(float magnitude, bool negative) noexcept {
  return f32_of_bits(bits_of_f32(magnitude) | (negative ? 0x80000000u : 0u));
}

}  // namespace numbers

// ---------------------------------------------------------------- bf16: s e8 m7

MOTET_NUMBER float bf16_to_f32(std::uint16_t code) noexcept { return f32_of_bits(static_cast<std::uint32_t>(code) << 16); }
/// NaN stays NaN (made quiet); values that round beyond the largest bf16 become infinity.
MOTET_NUMBER std::uint16_t f32_to_bf16(float value) noexcept {
  const std::uint32_t bits = bits_of_f32(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// ---------------------------------------------------------------- f16: s e5 m10

MOTET_NUMBER float f16_to_f32(std::uint16_t code) noexcept {
  const std::uint32_t magnitude = code & 0x7FFFu;
  const std::uint32_t sign = (code & 0x8000u) << 16;
  if (magnitude >= 0x7C00u)
    return f32_of_bits(sign | 0x7F800000u | ((magnitude & 0x03FFu) << 13) | (magnitude > 0x7C00u ? 0x00400000u : 0u));
  return numbers::with_sign(numbers::decode_magnitude(magnitude, 10, 15), sign != 0);
}
/// NaN stays NaN (made quiet); values that round beyond 65504 become infinity.
MOTET_NUMBER std::uint16_t f32_to_f16(float value) noexcept {
  const std::uint32_t bits = bits_of_f32(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x03FFu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65536 and up, infinity
  return static_cast<std::uint16_t>(sign | numbers::round_magnitude(magnitude, 10, 15));
}

// ---------------------------------------------------------------- fp8 and fp4

/// E4M3FN: 0x7F and 0xFF are NaN, there is no infinity.
MOTET_NUMBER float e4m3_to_f32(std::uint8_t code) noexcept {
  const std::uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return f32_of_bits(0x7FC00000u | (static_cast<std::uint32_t>(code & 0x80u) << 24));
  return numbers::with_sign(numbers::decode_magnitude(magnitude, 3, 7), (code & 0x80u) != 0);
}
/// Saturates at +-448 (infinity too); NaN becomes 0x7F with its sign.
MOTET_NUMBER std::uint8_t f32_to_e4m3(float value) noexcept {
  const std::uint32_t bits = bits_of_f32(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<std::uint8_t>(sign | 0x7Eu);  // 448 and up
  return static_cast<std::uint8_t>(sign | numbers::round_magnitude(magnitude, 3, 7));
}

/// E5M2: IEEE-like, 0x7C is infinity, 0x7D to 0x7F are NaN.
MOTET_NUMBER float e5m2_to_f32(std::uint8_t code) noexcept { return f16_to_f32(static_cast<std::uint16_t>(code << 8)); }

/// E8M0: 2^(code - 127). 0x00 is 2^-127, an fp32 subnormal; 0xFF is NaN.
MOTET_NUMBER float e8m0_to_f32(std::uint8_t code) noexcept {
  if (code == 0xFFu) return f32_of_bits(0x7FC00000u);
  return f32_of_bits(code == 0 ? 0x00400000u : static_cast<std::uint32_t>(code) << 23);
}

/// E2M1: codes 0..15 are 0 .5 1 1.5 2 3 4 6 and their negatives; only the low four bits of `code` are read.
MOTET_NUMBER float e2m1_to_f32(std::uint8_t code) noexcept {
  return numbers::with_sign(numbers::decode_magnitude(code & 7u, 1, 1), (code & 8u) != 0);
}
/// Saturates at +-6 (infinity too). There is no code for NaN: it becomes 6 with its sign, so callers carry NaN in the scale.
MOTET_NUMBER std::uint8_t f32_to_e2m1(float value) noexcept {
  const std::uint32_t bits = bits_of_f32(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> 28) & 8u;
  if (magnitude >= 0x40C00000u) return static_cast<std::uint8_t>(sign | 7u);  // 6 and up, NaN
  return static_cast<std::uint8_t>(sign | numbers::round_magnitude(magnitude, 1, 1));
}

#undef MOTET_NUMBER

}  // namespace motet
