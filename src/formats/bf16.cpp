// SPDX-License-Identifier: Apache-2.0
// bf16: the upper half of binary32. docs/formats/bf16.md
#if defined(MOTET_TARGET)
#include "kernels/codec_scales.h"
#include "kernels/matmul.h"

namespace motet::MOTET_TARGET {
namespace {

struct Bf16Codec : Unscaled {
  static constexpr int kPerDword = 2, kElementBytes = 2;
  static constexpr bool kHasBf16Pairs = true;
  template <int S>
  MOTET_VEC F value(I raw) {
    return as_float(S == 0 ? shl<16>(raw) : iand(raw, ibroadcast(0xFFFF0000u)));
  }
#if MOTET_HAS_BF16_DOT
  template <int>
  MOTET_VEC I pair_along(I raw) {
    return raw;
  }
  MOTET_VEC void pairs_across(I raw, int, I* out) { out[0] = raw; }
#endif
};

}  // namespace
}  // namespace motet::MOTET_TARGET

MOTET_KERNELS(bf16, Bf16Codec)

#else
#include "base/numbers.h"
#include "formats/format.h"
#include "formats/plain_matrix.h"

namespace motet {
namespace {

double value_at(const std::byte* code) noexcept {
  return static_cast<double>(f32_of_bits(static_cast<std::uint32_t>(load_unaligned<std::uint16_t>(code)) << 16));
}
void store_value(float value, std::byte* code) noexcept {
  const std::uint16_t bits = f32_to_bf16(value);
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

extern const Format format_bf16;
const Format format_bf16 = {.facts = {.name = "bf16",
                                      .about = "bfloat16",
                                      .bits_per_value = 16,
                                      .values_per_block = 1,
                                      .bytes_per_block = 2,
                                      .relative_step = 0x1p-8},
                            .decode = decode,
                            .encode = encode,
                            .check_values = check_values};

}  // namespace motet
#endif
