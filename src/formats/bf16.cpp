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
#include "formats/plain_matrix.h"

namespace motet {
namespace {

struct Bf16Element {
  using Code = std::uint16_t;
  static double value(Code code) noexcept { return static_cast<double>(f32_of_bits(static_cast<std::uint32_t>(code) << 16)); }
  static Code code(float value) noexcept { return f32_to_bf16(value); }
};

}  // namespace

extern const Format format_bf16;
const Format format_bf16 =
    plain_format<Bf16Element, 7, 127>({.name = "bf16", .about = "bfloat16", .relative_step = 0x1p-8}, DType::bf16);

}  // namespace motet
#endif
