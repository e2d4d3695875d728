// SPDX-License-Identifier: Apache-2.0
// 64-bit extents (L17): products and sums of untrusted sizes are checked before use.
// Every function is always inlined: wide-target objects that include this header export no weak copy of it.
#pragma once

#include <cstdint>

namespace motet {

/// *result = a * b; false (and *result unspecified) when the product does not fit.
[[nodiscard, gnu::always_inline]] inline constexpr bool checked_mul(std::int64_t a, std::int64_t b, std::int64_t* result) noexcept {
  return !__builtin_mul_overflow(a, b, result);
}
/// *result = a + b; false (and *result unspecified) when the sum does not fit.
[[nodiscard, gnu::always_inline]] inline constexpr bool checked_add(std::int64_t a, std::int64_t b, std::int64_t* result) noexcept {
  return !__builtin_add_overflow(a, b, result);
}
/// Quotient rounded up. Requires value >= 0, divisor > 0.
[[nodiscard, gnu::always_inline]] inline constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) noexcept {
  return value / divisor + (value % divisor != 0);
}
/// Smallest multiple of `unit` that is >= value. Requires value >= 0, unit > 0 and that it fits.
[[nodiscard, gnu::always_inline]] inline constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) noexcept {
  return ceil_div(value, unit) * unit;
}
/// Largest multiple of `unit` that is <= value. Requires value >= 0, unit > 0.
[[nodiscard, gnu::always_inline]] inline constexpr std::int64_t round_down(std::int64_t value, std::int64_t unit) noexcept {
  return value - value % unit;
}
/// round_up with the overflow told: false when the multiple does not fit or the arguments are out of range.
[[nodiscard, gnu::always_inline]] inline constexpr bool checked_round_up(std::int64_t value, std::int64_t unit,
                                                                         std::int64_t* result) noexcept {
  return value >= 0 && unit > 0 && checked_mul(ceil_div(value, unit), unit, result);
}

}  // namespace motet
