// SPDX-License-Identifier: Apache-2.0
// nvfp4: E2M1 codes packed along k, one E4M3 scale per 16, one scale per tensor. docs/formats/nvfp4.md
#if defined(MOTET_TARGET)
#include "kernels/codec_scales.h"
#include "kernels/matmul.h"

namespace motet::MOTET_TARGET {
namespace {

struct PairTables {
  std::uint16_t plain[16];
  constexpr PairTables() : plain() {
    for (int i = 0; i < 16; ++i) plain[i] = f32_to_bf16(kE2m1[i]);
  }
};
constexpr PairTables kPairs;

struct Nvfp4Codec : PackedE2m1<16, e4m3_x2> {
  static constexpr bool kHasBf16Pairs = true, kTensorScale = true;

  MOTET_VEC F fold_f32(I scale) { return mul(as_float(shl<20>(scale)), broadcast(0x1p120f)); }
  static bool rows_fold(const WeightView&, std::int64_t, std::int64_t) { return true; }
  static bool row_folds(const WeightView&, std::int64_t) { return true; }  // at most 2 + 4 significant bits, 2^-10 .. 2688

#if MOTET_HAS_BF16_DOT
  PairTable plain = pair_table(kPairs.plain);
  template <int S>
  [[gnu::always_inline]] I pair_along(I raw) const {
    return pair_lookup(plain, shr<4 * S>(raw));
  }  // nibbles S, S + 4
  MOTET_VEC F fold_pairs(I scale) { return fold_f32(scale); }
  /// Products are exact in bf16, so their upper halves are all of them.
  [[gnu::always_inline]] void pairs_across(I raw, F scale, I* out) const {
    out[0] = product_pair<0>(raw, scale);
    out[1] = product_pair<2>(raw, scale);
    out[2] = product_pair<4>(raw, scale);
    out[3] = product_pair<6>(raw, scale);
  }
  template <int S>
  [[gnu::always_inline]] I product_pair(I raw, F scale) const {
    return choose(ibroadcast(0xFFFF0000u), as_dwords(mul(value<S + 1>(raw), scale)), shr<16>(as_dwords(mul(value<S>(raw), scale))));
  }
#endif
};

}  // namespace
}  // namespace motet::MOTET_TARGET

MOTET_KERNELS(nvfp4, Nvfp4Codec)

#else
#include <cmath>

#include "formats/plain_matrix.h"

namespace motet {
namespace {

constexpr std::int64_t kBlock = 16;

/// E4M3 scale by its formula; NaN for 0x7F, and for codes with a sign, which check_values refuses.
double scale_value(std::byte byte) noexcept {
  const int code = static_cast<int>(byte), exponent = code >> 3, mantissa = code & 7;
  if (code >= 0x7F) return std::nan("");
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

void decode(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const double scale = scale_value(view.scales[row * view.scale_row_stride + (col + i) / kBlock * view.scale_col_stride]);
    out[i] = kE2m1Values[nibble(view, row, col + i)] * scale * view.tensor_scale;
  }
}

/// Tensor scale amax / (6 x 448), block scale amax / 6 in its units, between the smallest E4M3 value and 448; 1 for a zero block.
void encode(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out) {
  lay_out_packed(rows, cols, kBlock, DType::f8_e4m3, out);
  const float largest = largest_magnitude(values, rows * cols);
  const float tensor_scale = largest > 0 ? largest / (6.0f * 448.0f) : 1.0f;
  out.view.tensor_scale = static_cast<double>(tensor_scale > 0 ? tensor_scale : 0x1p-149f);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k0 = 0; k0 < cols; k0 += kBlock) {
      const float* block = values + r * cols + k0;
      const std::int64_t count = cols - k0 < kBlock ? cols - k0 : kBlock;
      const double wanted = static_cast<double>(largest_magnitude(block, count)) / 6.0 / out.view.tensor_scale;
      std::uint8_t code = f32_to_e4m3(static_cast<float>(wanted));
      if (wanted == 0.0) code = 0x38;
      if (code == 0) code = 1;
      out.scales[static_cast<std::size_t>(r * out.view.scale_row_stride + k0 / kBlock)] = static_cast<std::byte>(code);
      const double unit = scale_value(static_cast<std::byte>(code)) * out.view.tensor_scale;
      for (std::int64_t i = 0; i < count; ++i)
        set_nibble(out, r, k0 + i, f32_to_e2m1(static_cast<float>(static_cast<double>(block[i]) / unit)));
    }
  }
}

std::optional<std::string> check_values(const WeightView& view) {
  if (auto reason = check_packed_scales(view, "nvfp4", DType::f8_e4m3, kBlock)) return reason;
  if (auto reason = check_tensor_scale(view.tensor_scale)) return reason;
  if (const auto at = find_scale_from(view, std::byte{0x7F})) {
    const std::byte scale = view.scales[at->first * view.scale_row_stride + at->second];
    const bool is_nan = (scale & std::byte{0x7F}) == std::byte{0x7F};
    return value_at_block(is_nan ? "E4M3 scale is NaN" : "E4M3 scale has its sign bit set", at->first, at->second);
  }
  return std::nullopt;
}

/// compressed-tensors, whose tensor scale divides; modelopt.
std::vector<Spelling> spellings() {
  const std::vector<DType> codes = {DType::u8, DType::i8, DType::f4}, scales = {DType::f8_e4m3};
  return {{.codes = "weight_packed",
           .code_dtypes = codes,
           .scales = "weight_scale",
           .scale_dtypes = scales,
           .tensor_scale = "weight_global_scale",
           .reciprocal = true,
           .input_scale = "input_global_scale"},
          {.codes = "weight",
           .code_dtypes = codes,
           .scales = "weight_scale",
           .scale_dtypes = scales,
           .tensor_scale = "weight_scale_2",
           .input_scale = "input_scale"}};
}

}  // namespace

extern const Format format_nvfp4;
const Format format_nvfp4 = {
    .facts = {.name = "nvfp4",
              .about = "E2M1 values, one E4M3 scale per 16, one fp32 scale per tensor",
              .bits_per_value = 4,
              .values_per_block = 16,
              .bytes_per_block = 8,
              .scale_bytes = 1,
              .tensor_scale_bytes = 4,
              .block_rows = 1,
              .block_cols = 16,
              .relative_step = 0x1p-2},
    .spellings = spellings(),
    .decode = decode,
    .encode = encode,
    .check_values = check_values,
    .synthetic = {.codes = draw_e2m1, .codes_rms = kDrawnE2m1Rms, .scale = draw_e4m3_scale, .scales_rms = kDrawnE4m3ScalesRms}};

}  // namespace motet
#endif
