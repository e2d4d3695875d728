// SPDX-License-Identifier: Apache-2.0
// f16: IEEE binary16. docs/formats/f16.md
#if defined(MOTET_TARGET)
#include "kernels/codec_scales.h"
#include "kernels/matmul.h"

namespace motet::MOTET_TARGET {
namespace {

struct F16Codec : Unscaled {
  static constexpr int kPerDword = 2, kElementBytes = 2;
  static constexpr bool kHasBf16Pairs = false;  // ten mantissa bits
  template <int S>
  MOTET_VEC F value(I raw) {
    return f16_low(shr<16 * S>(raw));
  }
};

}  // namespace
}  // namespace motet::MOTET_TARGET

MOTET_KERNELS(f16, F16Codec)

#else
#include <cmath>

#include "formats/plain_matrix.h"

namespace motet {
namespace {

struct F16Element {
  using Code = std::uint16_t;
  static double value(Code code) noexcept {
    const int exponent = (code >> 10) & 31, mantissa = code & 1023;
    const double sign = (code & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
  }
  static Code code(float value) noexcept { return f32_to_f16(value); }
};

}  // namespace

extern const Format format_f16;
const Format format_f16 =
    plain_format<F16Element, 10, 15>({.name = "f16", .about = "IEEE binary16", .relative_step = 0x1p-11}, DType::f16);

}  // namespace motet
#endif
