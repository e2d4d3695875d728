// SPDX-License-Identifier: Apache-2.0
// `few`: 1 to Codec::kMaxFew tokens straight from the stored bytes of rows that are contiguous along k.
//
// The rows are cut into R runs of neighbours and one row of each run is in flight, so that a thread reads R long streams: one
// stream reaches little over half of the read bandwidth, four reach it (two cores of a Zen 5, November 2026: 26..48 against 67
// GB/s). Each 64 stored bytes are decoded once for a group of tokens, into lanes as they lie; the activations are put into that
// order first.
#pragma once

#include "base/numbers.h"
#include "kernels/arithmetic.h"

namespace motet::MOTET_TARGET {
namespace {

inline constexpr int kFewGroup = 4;                   // tokens served by one decode: their activations stay in L1
inline constexpr std::int64_t kFewBytes = 128 << 10;  // codes that stay in L2 while several groups of tokens pass over them
// Share of the read probe for MXFP4, one token, two cores of a Zen 5, November 2026: 256 B 0.82, 512 B 0.84, 1 KiB 0.80,
// 2 KiB 0.93, 4 KiB 0.86, 8 KiB 0.82.
inline constexpr std::int64_t kAheadBytes = 2048;

template <class Codec>
inline constexpr std::int64_t kStep = 16 * Codec::kPerDword;  // elements in 64 stored bytes
/// Activations in natural order are already in lane order.
template <class Codec, class A>
inline constexpr bool kNatural = Codec::kPerDword == A::kUnit;

template <class Codec>
MOTET_VEC std::int64_t stored_bytes(std::int64_t elements) {
  return (elements * 4 + Codec::kPerDword - 1) / Codec::kPerDword;
}
MOTET_VEC std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

template <class Codec>
bool few_reads(const WeightView& w) noexcept {
  return Codec::kElementBytes == 0 || w.panel_bytes > 0 || w.col_stride == Codec::kElementBytes;
}

/// Bytes of one token's activations in lane order.
template <class Codec, class A>
MOTET_VEC std::int64_t ordered_bytes(std::int64_t cols) {
  return round_up(cols, kStep<Codec>) * A::kBytes;
}

/// `count` elements of x as the arithmetic's element type.
template <class A>
MOTET_VEC void convert_activations(const std::byte* x, DType dtype, std::int64_t count, std::byte* out) {
  if (dtype == A::kActivation) {
    __builtin_memcpy(out, x, static_cast<std::size_t>(count * A::kBytes));
  } else if constexpr (A::kActivation == DType::f32) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint16_t code;
      __builtin_memcpy(&code, x + 2 * i, 2);
      const float value = bf16_to_f32(code);
      __builtin_memcpy(out + 4 * i, &value, 4);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      float value;
      __builtin_memcpy(&value, x + 4 * i, 4);
      const std::uint16_t code = f32_to_bf16(value);
      __builtin_memcpy(out + 2 * i, &code, 2);
    }
  }
}

/// One token's activations in lane order and in the arithmetic's element type, zero past cols.
template <class Codec, class A>
[[gnu::noinline]] void order_activations(const std::byte* x, DType dtype, std::int64_t cols, std::byte* out) {
  constexpr std::int64_t P = Codec::kPerDword, kVectors = P / A::kUnit;
  const std::int64_t bytes = dtype == DType::f32 ? 4 : 2;
  for (std::int64_t k0 = 0; k0 < cols; k0 += kStep<Codec>, x += kStep<Codec> * bytes, out += kStep<Codec> * A::kBytes) {
    alignas(64) std::byte from[kStep<Codec> * A::kBytes];
    const std::int64_t count = cols - k0 < kStep<Codec> ? cols - k0 : kStep<Codec>;
    if (count < kStep<Codec>) __builtin_memset(from, 0, sizeof from);
    convert_activations<A>(x, dtype, count, from);
    for (std::int64_t j = 0; j < 16; ++j)
      for (std::int64_t s = 0; s < kVectors; ++s)
        for (std::int64_t u = 0; u < A::kUnit; ++u)
          __builtin_memcpy(out + ((s * 16 + j) * A::kUnit + u) * A::kBytes, from + (j * P + s + u * kVectors) * A::kBytes,
                           A::kBytes);
  }
}

/// Vectors S and on of 64 stored bytes of R rows, times the activations of T tokens. One decoded vector per row and one of
/// activations are live at a time: sums and parts take the registers.
template <class Codec, class A, int R, int T, int S>
MOTET_VEC void add_vectors(const Codec& codec, const I (&raw)[R], const std::byte* x, std::int64_t x_stride, F (&sums)[R][T]) {
  typename A::Vector weights[R];
  for (int r = 0; r < R; ++r) weights[r] = A::template along<Codec, S>(codec, raw[r]);
  for (int t = 0; t < T; ++t) {
    const auto xt = A::load_x(x + t * x_stride + 64 * S);
    for (int r = 0; r < R; ++r)
      sums[r][t] = Codec::kStepScale && !Codec::kSegments && S == 0 ? A::first(weights[r], xt) : A::add(sums[r][t], weights[r], xt);
  }
  if constexpr (S + 1 < Codec::kPerDword / A::kUnit) add_vectors<Codec, A, R, T, S + 1>(codec, raw, x, x_stride, sums);
}

/// sums += parts * scale for R rows, T tokens.
template <int R, int T>
MOTET_VEC void add_scaled(const F (&parts)[R][T], const F (&scale)[R], F (&sums)[R][T]) {
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sums[r][t] = fma(parts[r][t], scale[r], sums[r][t]);
}
template <int R, int T>
MOTET_VEC void clear(F (&sums)[R][T]) {
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sums[r][t] = zero();
}

template <class Codec, class A, int R, int T>
[[gnu::noinline]] void few_rows(const MatmulArgs& args, const std::byte* x, std::int64_t x_stride) {
  const WeightView& w = *args.weight;
  const Codec codec;
  constexpr std::int64_t kStepX = kStep<Codec> * A::kBytes;
  const std::int64_t rows = args.row_end - args.row_begin, run = (rows + R - 1) / R;
  const std::int64_t steps = w.cols / kStep<Codec>, tail = stored_bytes<Codec>(w.cols - steps * kStep<Codec>);
  const std::int64_t row_bytes = stored_bytes<Codec>(w.cols);
  // What lies kAheadBytes further in the stream of rows: some rows and a rest further, the gap between rows skipped.
  const std::int64_t rest = kAheadBytes % row_bytes, ahead = kAheadBytes / row_bytes * w.row_stride + rest,
                     gap = w.row_stride - row_bytes;
  std::int64_t steps_of_scale = 1;  // with kSegments: whole steps under one scale, else a scale per lane
  if constexpr (Codec::kSegments) steps_of_scale = w.block_cols % 64 == 0 ? w.block_cols / 64 : 1;
  float final_scale = 1.0f;
  if constexpr (Codec::kTensorScale) final_scale = static_cast<float>(w.tensor_scale);

  for (std::int64_t i = 0; i < run; ++i) {
    // 1. Row i of every run.
    const std::byte* codes[R];
    typename Codec::RowScales scales[R];
    std::int64_t row[R];
    F sums[R][T];
    for (int r = 0; r < R; ++r) {
      row[r] = args.row_begin + r * run + i;
      if (row[r] >= args.row_end) row[r] = args.row_end - 1;  // the last run is shorter: its last row again
      codes[r] = w.codes + row[r] * w.row_stride;
      scales[r] = codec.row_scales(w, row[r]);
    }
    clear(sums);
    // 2. Whole steps of 64 stored bytes, the steps under one scale together.
    const std::byte* xs = x;
    for (std::int64_t step = 0; step < steps;) {
      const std::int64_t end = !Codec::kSegments ? step + 1 : steps - step > steps_of_scale ? step + steps_of_scale : steps;
      F parts[R][T];  // of one scale: the steps up to `end`
      if constexpr (Codec::kSegments) clear(parts);
      std::int64_t s = step;
      do {
        const std::int64_t at = s * 64, next = at + ahead + (at + rest >= row_bytes ? gap : 0);
        I raw[R];
        for (int r = 0; r < R; ++r) {
          prefetch(codes[r] + next);
          raw[r] = in_register(iload(codes[r] + at));
        }
        if constexpr (Codec::kStepScale)
          add_vectors<Codec, A, R, T, 0>(codec, raw, xs, x_stride, parts);
        else
          add_vectors<Codec, A, R, T, 0>(codec, raw, xs, x_stride, sums);
        xs += kStepX;
      } while (Codec::kSegments && ++s < end);
      if constexpr (Codec::kStepScale) {
        F scale[R];
        for (int r = 0; r < R; ++r) scale[r] = codec.step_scale(w, scales[r], step);
        add_scaled(parts, scale, sums);
      }
      step = end;
    }
    // 3. The last, partial step.
    if (tail > 0) {
      I raw[R];
      for (int r = 0; r < R; ++r) raw[r] = iload_part(codes[r] + steps * 64, tail);
      if constexpr (Codec::kStepScale) {
        F parts[R][T], scale[R];
        if constexpr (Codec::kSegments) clear(parts);
        for (int r = 0; r < R; ++r) scale[r] = codec.last_scale(w, scales[r], steps);
        add_vectors<Codec, A, R, T, 0>(codec, raw, xs, x_stride, parts);
        add_scaled(parts, scale, sums);
      } else {
        add_vectors<Codec, A, R, T, 0>(codec, raw, xs, x_stride, sums);
      }
    }
    // 4. Lanes to one sum.
    for (int r = 0; r < R; ++r) {
      float factor = final_scale;
      if constexpr (A::kUnit == 1 && kLooksForNan<Codec>) factor = Codec::has_nan(w, row[r]) ? __builtin_nanf("") : final_scale;
      for (int t = 0; t < T; ++t) {
        const float total = sum(sums[r][t]);
        const bool scaled = Codec::kTensorScale || (A::kUnit == 1 && kLooksForNan<Codec>);
        args.out[t * args.out_stride + row[r] - args.row_begin] = scaled ? total * factor : total;
      }
    }
  }
}

template <class Codec, class A, int T>
MOTET_VEC void few_tokens(const MatmulArgs& args, const std::byte* x, std::int64_t x_stride) {
  if (args.tokens == T) {
    constexpr int kSums = A::kFewSums / (Codec::kStepScale ? 2 * T : T);  // with parts
    few_rows<Codec, A, kSums >= 4 ? 4 : kSums >= 2 ? 2 : 1, T>(args, x, x_stride);
  } else if constexpr (T > 1) {
    few_tokens<Codec, A, T - 1>(args, x, x_stride);
  }
}

template <class Codec, class A>
void few_packed(const MatmulArgs& args);  // matmul_packed.h

template <class Codec, class A>
void few(const MatmulArgs& args) noexcept {
  if (args.weight->panel_bytes > 0) return few_packed<Codec, A>(args);
  const std::byte* x = args.x;  // k_unit covers the last step of activations in natural order
  std::int64_t x_stride = args.x_stride;
  if (!kNatural<Codec, A> || args.x_dtype != A::kActivation) {
    x = args.scratch;
    x_stride = ordered_bytes<Codec, A>(args.weight->cols);
    for (std::int64_t t = 0; t < args.tokens && !args.encoded; ++t)
      order_activations<Codec, A>(args.x + t * args.x_stride, args.x_dtype, args.weight->cols, args.scratch + t * x_stride);
  }
  const std::int64_t groups = (args.tokens + kFewGroup - 1) / kFewGroup, rows = args.row_end - args.row_begin;
  std::int64_t chunk = groups == 1 ? rows : kFewBytes / stored_bytes<Codec>(args.weight->cols) / 4 * 4;
  chunk = chunk < 4 ? 4 : chunk;
  for (std::int64_t row = 0; row < rows; row += chunk) {
    for (std::int64_t g = 0, first = 0; g < groups; ++g) {
      MatmulArgs part = args;
      part.row_begin = args.row_begin + row;
      part.row_end = rows - row < chunk ? args.row_end : part.row_begin + chunk;
      part.tokens = args.tokens / groups + (g < args.tokens % groups ? 1 : 0);
      part.out = args.out + first * args.out_stride + row;
      few_tokens<Codec, A, kFewGroup>(part, x + first * x_stride, x_stride);
      first += part.tokens;
    }
  }
}

}  // namespace
}  // namespace motet::MOTET_TARGET
