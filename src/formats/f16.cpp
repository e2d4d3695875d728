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

#include "base/numbers.h"
#include "formats/format.h"
#include "formats/plain_matrix.h"

namespace motet {
namespace {

double value_at(const std::byte* code) noexcept {
  const auto bits = load_unaligned<std::uint16_t>(code);
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}
void store_value(float value, std::byte* code) noexcept {
  const std::uint16_t bits = f32_to_f16(value);
  std::memcpy(code, &bits, sizeof bits);
}

void decode(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept {
  decode_elements(view, row, col, count, out, value_at);
}
void encode(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out) {
  encode_elements(values, rows, cols, 2, out, store_value);
}
std::optional<std::string> check_values(const WeightView&) { return std::nullopt; }

}  // namespace

extern const Format format_f16;
const Format format_f16 = {.facts = {.name = "f16",
                                     .about = "IEEE binary16",
                                     .bits_per_value = 16,
                                     .values_per_block = 1,
                                     .bytes_per_block = 2,
                                     .relative_step = 0x1p-11},
                           .decode = decode,
                           .encode = encode,
                           .check_values = check_values};

}  // namespace motet
#endif
