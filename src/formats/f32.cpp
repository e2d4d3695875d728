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
#include "formats/plain_matrix.h"

namespace motet {
namespace {

struct F32Element {
  using Code = float;
  static double value(Code code) noexcept { return static_cast<double>(code); }
  static Code code(float value) noexcept { return value; }
};

}  // namespace

extern const Format format_f32;
const Format format_f32 =
    plain_format<F32Element, 23, 127>({.name = "f32", .about = "IEEE binary32", .relative_step = 0x1p-24}, DType::f32);

}  // namespace motet
#endif
