// SPDX-License-Identifier: Apache-2.0
// f32: plain binary32 values. docs/formats/f32.md
#if defined(MOTET_TARGET)
#include "kernels/codec_scales.h"
#include "kernels/matmul.h"

namespace motet::MOTET_TARGET {
namespace {

struct F32Codec : Unscaled {
  static constexpr int kPerDword = 1, kElementBytes = 4;
  static constexpr bool kHasBf16Pairs = false;
  template <int>
  MOTET_VEC F value(I raw) {
    return as_float(raw);
  }
};

}  // namespace
}  // namespace motet::MOTET_TARGET

MOTET_KERNELS(f32, F32Codec)

#else
#include "base/numbers.h"
#include "formats/format.h"
#include "formats/plain_matrix.h"

namespace motet {
namespace {

double value_at(const std::byte* code) noexcept { return static_cast<double>(load_unaligned<float>(code)); }
void store_value(float value, std::byte* code) noexcept { std::memcpy(code, &value, sizeof value); }

void decode(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept {
  decode_elements(view, row, col, count, out, value_at);
}
void encode(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out) {
  encode_elements(values, rows, cols, 4, out, store_value);
}
std::optional<std::string> check_values(const WeightView&) { return std::nullopt; }

}  // namespace

extern const Format format_f32;
const Format format_f32 = {.facts = {.name = "f32",
                                     .about = "IEEE binary32",
                                     .bits_per_value = 32,
                                     .values_per_block = 1,
                                     .bytes_per_block = 4,
                                     .relative_step = 0x1p-24},
                           .decode = decode,
                           .encode = encode,
                           .check_values = check_values};

}  // namespace motet
#endif
