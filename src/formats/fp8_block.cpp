// SPDX-License-Identifier: Apache-2.0
// fp8_block: E4M3 codes, one scale per block of rows and columns. docs/formats/fp8_block.md
#if defined(MOTET_TARGET)
#include "kernels/codec_scales.h"
#include "kernels/matmul.h"

namespace motet::MOTET_TARGET {
namespace {

// bf16 bytes of the codes 0..127, NaN included; the sign is carried over.
struct PairTables {
  std::uint8_t low[128], high[128];
  constexpr PairTables() : low(), high() {
    for (int i = 0; i < 128; ++i) {
      const std::uint16_t bits = f32_to_bf16(e4m3_to_f32(static_cast<std::uint8_t>(i)));
      low[i] = static_cast<std::uint8_t>(bits & 255);
      high[i] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
};
[[maybe_unused]] constexpr PairTables kPairs;

struct Fp8BlockCodec {
  static constexpr int kPerDword = 4, kElementBytes = 1, kMaxFew = 4;
  static constexpr bool kHasBf16Pairs = true, kStepScale = true, kSegments = true, kTensorScale = false;
  static constexpr std::int64_t kFoldBlock = 0;
  using RowScales = const std::byte*;

  static float scale_at(const WeightView& w, const std::byte* p) {
    if (w.scale_dtype == DType::f32) return load_unaligned<float>(p);
    if (w.scale_dtype == DType::bf16) return bf16_to_f32(load_unaligned<std::uint16_t>(p));
    return e8m0_to_f32(load_unaligned<std::uint8_t>(p));
  }
  static float scale(const WeightView& w, std::int64_t row, std::int64_t col) {
    return scale_at(w, w.scales + row / w.block_rows * w.scale_row_stride + col / w.block_cols * w.scale_col_stride);
  }
  MOTET_VEC RowScales row_scales(const WeightView& w, std::int64_t row) {
    return w.scales + row / w.block_rows * w.scale_row_stride;
  }
  /// Scales of the 64 columns of a step: one, or one per lane of 4 columns.
  MOTET_VEC F step_scale(const WeightView& w, RowScales scales, std::int64_t step) {
    if (w.block_cols % 64 == 0) return broadcast(scale_at(w, scales + step * 64 / w.block_cols * w.scale_col_stride));
    return last_scale(w, scales, step);
  }
  static F last_scale(const WeightView& w, RowScales scales, std::int64_t step) {
    float lanes[16];
    for (std::int64_t j = 0; j < 16; ++j) {
      const std::int64_t col = step * 64 + 4 * j;
      lanes[j] = col < w.cols ? scale_at(w, scales + col / w.block_cols * w.scale_col_stride) : 0.0f;
    }
    return load(lanes);
  }

  /// NaN codes are +-480. Exponent and mantissa go to bits 20..26 and the exponent up by 120: g, right for all but subnormal codes,
  /// which are 2 g - 2^-6: the ones for which g - 2^-6 is negative. No fp32 subnormal comes up, as the product of one takes some
  /// processors 150 cycles (fp8 at one token on a Granite Rapids: 1.3 GB/s when codes were read as subnormals).
  template <int S>
  MOTET_VEC F finite_value(I raw) {
    const I bits = shl<24 - 8 * S>(raw);
    const F g = as_float(iadd(iand(shr<4>(bits), ibroadcast(0x07F00000u)), ibroadcast(120u << 23)));
    const I less = as_dwords(fma(g, broadcast(1.0f), broadcast(-0x1p-6f)));
    const F magnitude = fma(as_float(iand(less, sar<31>(less))), broadcast(1.0f), g);
    return as_float(ior(as_dwords(magnitude), iand(bits, ibroadcast(0x80000000u))));
  }
  /// For rows of bytes side by side.
  static bool has_nan(const WeightView& w, std::int64_t row) {
    const auto* codes = reinterpret_cast<const unsigned char*>(w.codes + row * w.row_stride);
    unsigned char found = 0;  // no early exit: compilers vectorise this loop
    for (std::int64_t k = 0; k < w.cols; ++k) found |= static_cast<unsigned char>((codes[k] & 0x7F) == 0x7F);
    return found != 0;
  }
  /// 480 x 2^120 / 1.8125 is infinite (448 is not), and infinity x 0 makes the NaN; other codes add a zero of their sign.
  template <int S>
  MOTET_VEC F value(I raw) {
    const F read = finite_value<S>(raw);
    return fma(mul(read, broadcast(0x1p120f / 1.8125f)), zero(), read);
  }

#if MOTET_HAS_BF16_DOT
  ByteTable low = byte_table(kPairs.low), high = byte_table(kPairs.high);
  template <int S>
  [[gnu::always_inline]] I pair_along(I raw) const {  // bytes S and S + 2
    const I upper = ior(byte_lookup(high, raw), iand(raw, ibroadcast(0x80808080u))), lower = byte_lookup(low, raw);
    return S == 0 ? choose(ibroadcast(0xFF00FF00u), shl<8>(upper), lower) : choose(ibroadcast(0xFF00FF00u), upper, shr<8>(lower));
  }
  [[gnu::always_inline]] void pairs_across(I raw, int, I* out) const {
    const I swapped = swap_middle_bytes(raw);
    out[0] = pair_along<0>(swapped);
    out[1] = pair_along<1>(swapped);
  }
#endif
};

}  // namespace
}  // namespace motet::MOTET_TARGET

MOTET_KERNELS(fp8_block, Fp8BlockCodec)

#else
#include <cmath>

#include "formats/plain_matrix.h"

namespace motet {
namespace {

constexpr std::int64_t kBlock = 128, kColumnUnit = 16;

double code_value(std::byte byte) noexcept {
  const int code = static_cast<int>(byte), exponent = (code >> 3) & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

double scale_value(const WeightView& view, const std::byte* p) noexcept {
  if (view.scale_dtype == DType::f32) return static_cast<double>(load_unaligned<float>(p));
  if (view.scale_dtype == DType::bf16) return static_cast<double>(bf16_to_f32(load_unaligned<std::uint16_t>(p)));
  return *p == std::byte{0xFF} ? std::nan("") : std::ldexp(1.0, static_cast<int>(*p) - 127);
}
const std::byte* scale_address(const WeightView& view, std::int64_t row, std::int64_t col) noexcept {
  return view.scales + row / view.block_rows * view.scale_row_stride + col / view.block_cols * view.scale_col_stride;
}

void decode(const WeightView& view, std::int64_t row, std::int64_t col, std::int64_t count, double* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = code_value(view.codes[row * view.row_stride + (col + i) * view.col_stride]) *
             scale_value(view, scale_address(view, row, col + i));
}

/// Blocks of 128 x 128 with scale amax / 448; 1 for a zero block.
void encode(const float* values, std::int64_t rows, std::int64_t cols, EncodedMatrix& out) {
  const std::int64_t block_rows = (rows + kBlock - 1) / kBlock, block_cols = (cols + kBlock - 1) / kBlock;
  out.codes.assign(static_cast<std::size_t>(rows * cols), std::byte{0});
  out.scales.assign(static_cast<std::size_t>(block_rows * block_cols * 4), std::byte{0});
  out.view = {.codes = out.codes.data(),
              .rows = rows,
              .cols = cols,
              .row_stride = cols,
              .col_stride = 1,
              .scales = out.scales.data(),
              .scale_dtype = DType::f32,
              .scale_row_stride = block_cols * 4,
              .scale_col_stride = 4,
              .block_rows = kBlock,
              .block_cols = kBlock};
  for (std::int64_t i = 0; i < block_rows; ++i) {
    for (std::int64_t j = 0; j < block_cols; ++j) {
      const std::int64_t row_end = (i + 1) * kBlock < rows ? (i + 1) * kBlock : rows, col = j * kBlock;
      const std::int64_t count = cols - col < kBlock ? cols - col : kBlock;
      float largest = 0;
      for (std::int64_t r = i * kBlock; r < row_end; ++r)
        largest = std::fmax(largest, largest_magnitude(values + r * cols + col, count));
      const float scale = largest / 448.0f > 0 ? largest / 448.0f : 1.0f;
      std::memcpy(out.scales.data() + (i * block_cols + j) * 4, &scale, sizeof scale);
      for (std::int64_t r = i * kBlock; r < row_end; ++r)
        for (std::int64_t k = col; k < col + count; ++k)
          out.codes[static_cast<std::size_t>(r * cols + k)] = static_cast<std::byte>(f32_to_e4m3(values[r * cols + k] / scale));
    }
  }
}

std::optional<std::string> check_values(const WeightView& view) {
  if (view.scales == nullptr) return "fp8_block needs block scales and has none";
  if (view.scale_dtype != DType::f32 && view.scale_dtype != DType::bf16 && view.scale_dtype != DType::f8_e8m0)
    return "fp8_block scales must be F32, BF16 or F8_E8M0, not " + std::string(name_of(view.scale_dtype));
  if (view.block_rows < 1 || view.block_cols < 1 || (view.block_cols % kColumnUnit != 0 && view.block_cols < view.cols))
    return "fp8_block needs blocks of a multiple of 16 columns, or of all columns; these are of " +
           std::to_string(view.block_rows) + " rows x " + std::to_string(view.block_cols) + " columns";
  for (std::int64_t r = 0; r < view.rows; r += view.block_rows) {
    for (std::int64_t c = 0; c < view.cols; c += view.block_cols) {
      const double scale = scale_value(view, scale_address(view, r, c));
      if (!std::isfinite(scale) || scale <= 0)
        return value_at_block("scale " + std::to_string(scale) + " is not finite and above zero", r, c / view.block_cols);
    }
  }
  return std::nullopt;
}

/// DeepSeek-V3, whose "inverse" scale multiplies; compressed-tensors.
std::vector<Spelling> spellings() {
  const std::vector<DType> codes = {DType::f8_e4m3}, scales = {DType::f32, DType::bf16, DType::f8_e8m0};
  return {
      {.codes = "weight", .code_dtypes = codes, .scales = "weight_scale_inv", .scale_dtypes = scales, .configured_blocks = true},
      {.codes = "weight", .code_dtypes = codes, .scales = "weight_scale", .scale_dtypes = scales, .configured_blocks = true}};
}

}  // namespace

extern const Format format_fp8_block;
const Format format_fp8_block = {.facts = {.name = "fp8_block",
                                           .about = "E4M3 values, one scale per block (128 x 128 as published)",
                                           .bits_per_value = 8,
                                           .values_per_block = 1,
                                           .bytes_per_block = 1,
                                           .scale_bytes = 4,
                                           .block_rows = 128,
                                           .block_cols = 128,
                                           .block_cols_unit = kColumnUnit,
                                           .relative_step = 0x1p-4},
                                 .spellings = spellings(),
                                 .decode = decode,
                                 .encode = encode,
                                 .check_values = check_values,
                                 .synthetic = {.codes = draw_e4m3, .codes_rms = kDrawnE4m3Rms, .scale = draw_f32_scale}};

}  // namespace motet
#endif
