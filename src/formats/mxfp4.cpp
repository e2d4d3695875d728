// SPDX-License-Identifier: Apache-2.0
// mxfp4: E2M1 codes packed along k, one E8M0 scale per 32. docs/formats/mxfp4.md
#if defined(MOTET_TARGET)
#include "kernels/codec_scales.h"
#include "kernels/matmul.h"

namespace motet::MOTET_TARGET {
namespace {

// bf16 panels hold value x 2^125 less 125 - e in the exponent, by subtraction that stops at zero: code 0 stays 0, and -0 is
// stored as 0. Exact for scales 2^e with -125 <= e <= 125: 0.5 x 2^-125 is the smallest normal, 6 x 2^125 is below 2^128.
constexpr int kTop = 125;
struct PairTables {
  std::uint16_t plain[16], raised[16];
  constexpr PairTables() : plain(), raised() {
    for (int i = 0; i < 16; ++i) {
      plain[i] = f32_to_bf16(kE2m1[i]);
      raised[i] = (i & 7) == 0 ? std::uint16_t{0} : static_cast<std::uint16_t>(plain[i] + (kTop << 7));
    }
  }
};
constexpr PairTables kPairs;

struct Mxfp4Codec : PackedE2m1<32, e8m0_x4> {
  static constexpr bool kHasBf16Pairs = true, kTensorScale = false;

  MOTET_VEC F fold_f32(I scale) { return as_float(at_least(shl<23>(scale), ibroadcast(0x00400000u))); }
  /// A scale beyond 2^+-125.
  MOTET_VEC bool far(std::byte scale) { return static_cast<unsigned char>(static_cast<unsigned char>(scale) - 2) > 250; }
  static bool none_far(const std::byte* scales, std::int64_t count) {
    unsigned char any = 0;  // no early exit: compilers vectorise this loop
    for (std::int64_t b = 0; b < count; ++b) any |= static_cast<unsigned char>(far(scales[b]));
    return any == 0;
  }
  /// True when row_folds() surely is for all of these rows: their scales lie in one run and none is far.
  static bool rows_fold(const WeightView& w, std::int64_t row, std::int64_t rows) {
    const std::int64_t blocks = (w.cols + 31) / 32;
    if (w.panel_bytes == 0) return w.scale_row_stride == blocks && none_far(w.scales + row * blocks, rows * blocks);
    bool none = true;
    for (std::int64_t p = row / 16; p * 16 < row + rows; ++p) none = none && none_far(w.codes + p * w.panel_bytes, blocks * 16);
    return none;
  }
  /// Folding is exact: no far scale, but for blocks of zeros, whose scale says nothing.
  static bool row_folds(const WeightView& w, std::int64_t row) {
    const std::int64_t blocks = (w.cols + 31) / 32, bytes = (w.cols + 1) / 2;
    // Steps from one scale to the next and from one dword of codes to the next.
    const bool packed = w.panel_bytes > 0;
    const std::byte* panel = w.codes + row / 16 * w.panel_bytes;
    const std::byte* scales = packed ? panel + row % 16 : w.scales + row * w.scale_row_stride;
    const std::byte* codes = packed ? panel + panel_scale_bytes<Mxfp4Codec>(w) + row % 16 * 4 : w.codes + row * w.row_stride;
    const std::int64_t scale_step = packed ? 16 : 1, dword_step = packed ? 64 : 4;
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (!far(scales[b * scale_step])) continue;
      for (std::int64_t i = b * 16; i < b * 16 + 16 && i < bytes; ++i)
        if ((codes[i / 4 * dword_step + i % 4] & std::byte{0x77}) != std::byte{0}) return false;
    }
    return true;
  }

#if MOTET_HAS_BF16_DOT
  PairTable plain = pair_table(kPairs.plain), raised = pair_table(kPairs.raised);
  template <int S>
  [[gnu::always_inline]] I pair_along(I raw) const {
    return pair_lookup(plain, shr<4 * S>(raw));
  }  // nibbles S, S + 4
  /// What each word is lowered by: (252 - scale byte) << 7.
  MOTET_VEC I fold_pairs(I scale) {
    const I lowered = shl<7>(at_least_zero(252, scale));
    return ior(lowered, shl<16>(lowered));
  }
  [[gnu::always_inline]] void pairs_across(I raw, I lowered, I* out) const {
    out[0] = lower_words(pair_lookup(raised, nibble_pair<0>(raw)), lowered);
    out[1] = lower_words(pair_lookup(raised, nibble_pair<1>(raw)), lowered);
    out[2] = lower_words(pair_lookup(raised, nibble_pair<2>(raw)), lowered);
    out[3] = lower_words(pair_lookup(raised, nibble_pair<3>(raw)), lowered);
  }
#endif
};

}  // namespace
}  // namespace motet::MOTET_TARGET

MOTET_KERNELS(mxfp4, Mxfp4Codec)

#else
#include <cmath>

#include "formats/plain_matrix.h"

namespace motet {
namespace {

constexpr std::int64_t kBlock = 32;

void decode(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const int scale = static_cast<int>(view.scales[row * view.scale_row_stride + (col + i) / kBlock * view.scale_col_stride]);
    out[i] = scale == 0xFF ? std::nan("") : std::ldexp(kE2m1Values[nibble(view, row, col + i)], scale - 127);
  }
}

/// The OCP rule: the shared exponent is floor(log2 amax) - 2, so that the block's largest value lies in [4, 8) steps; 6 saturates.
void encode(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out) {
  lay_out_packed(rows, cols, kBlock, DType::f8_e8m0, out);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k0 = 0; k0 < cols; k0 += kBlock) {
      const float* block = values + r * cols + k0;
      const std::int64_t count = cols - k0 < kBlock ? cols - k0 : kBlock;
      const float largest = largest_magnitude(block, count);
      int exponent = largest > 0 ? std::ilogb(largest) - 2 : -127;
      exponent = exponent < -127 ? -127 : exponent;
      out.scales[static_cast<std::size_t>(r * out.view.scale_row_stride + k0 / kBlock)] = static_cast<std::byte>(exponent + 127);
      for (std::int64_t i = 0; i < count; ++i)
        set_nibble(out, r, k0 + i, f32_to_e2m1(static_cast<float>(std::ldexp(static_cast<double>(block[i]), -exponent))));
    }
  }
}

std::optional<std::string> check_values(const WeightView& view) {
  if (auto reason = check_packed_scales(view, "mxfp4", DType::f8_e8m0, kBlock)) return reason;
  if (const auto at = find_scale_from(view, std::byte{0xFF}))
    return value_at_block("E8M0 scale 0xff is NaN", at->first, at->second);
  return std::nullopt;
}

/// gpt-oss stacks; compressed-tensors; modelopt.
std::vector<Spelling> spellings() {
  const std::vector<DType> codes = {DType::u8, DType::i8, DType::f4}, scales = {DType::f8_e8m0, DType::u8};
  return {
      {.codes = "blocks", .code_dtypes = codes, .scales = "scales", .scale_dtypes = scales, .stacks = true, .split_codes = true},
      {.codes = "weight_packed", .code_dtypes = codes, .scales = "weight_scale", .scale_dtypes = scales},
      {.codes = "weight", .code_dtypes = codes, .scales = "weight_scale", .scale_dtypes = scales}};
}

}  // namespace

extern const Format format_mxfp4;
const Format format_mxfp4 = {.facts = {.name = "mxfp4",
                                       .about = "E2M1 values, one E8M0 scale per 32 (OCP MXFP4)",
                                       .bits_per_value = 4,
                                       .values_per_block = 32,
                                       .bytes_per_block = 16,
                                       .scale_bytes = 1,
                                       .block_rows = 1,
                                       .block_cols = 32,
                                       .relative_step = 0x1p-2},
                             .spellings = spellings(),
                             .decode = decode,
                             .encode = encode,
                             .check_values = check_values,
                             .synthetic = {.codes = draw_e2m1, .codes_rms = kDrawnE2m1Rms, .scale = draw_e8m0_scale}};

}  // namespace motet
#endif
