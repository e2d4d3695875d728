// SPDX-License-Identifier: Apache-2.0
// Packed matrices (formats/packed.h): 16 rows in the lanes of a vector, columns one after another, so that no sum crosses lanes
// and activations are broadcast from memory by the load ports.
//
// `few_packed` decodes a group of columns of 16 rows once into registers and passes over the tokens; sums lie in the first-level
// cache. A token's sum of one row: in a group, columns of even and of odd vectors apart, then added; groups in order of k, each
// times its scale. That is the same for every number of tokens, rows and threads.
#pragma once

#include "kernels/matmul_few.h"

namespace motet::MOTET_TARGET {
namespace {

/// Vectors decoded from one dword per row, dwords and columns of a group: at most 16 vectors, all under one scale.
template <class Codec, class A>
struct PackedGroup {
  static constexpr int kVectors = Codec::kPerDword / A::kUnit;
  static constexpr int kOfScale = Codec::kFoldBlock > 0 ? static_cast<int>(Codec::kFoldBlock) / Codec::kPerDword : 16;
  static constexpr int kDwords = 16 / kVectors < kOfScale ? 16 / kVectors : kOfScale;
  static constexpr std::int64_t kCols = kDwords * Codec::kPerDword, kBytes = kDwords * 64;
  static constexpr std::int64_t kXBytes = kDwords * kVectors * 4;  ///< of one token's activations
};

/// Bytes of the scales at the head of a panel.
template <class Codec>
MOTET_VEC std::int64_t panel_scale_bytes(const WeightView& w) {
  if constexpr (Codec::kFoldBlock > 0) return round_up((w.cols + Codec::kFoldBlock - 1) / Codec::kFoldBlock * 16, 64);
  if constexpr (Codec::kSegments) return round_up((w.cols + w.block_cols - 1) / w.block_cols * 4, 64);
  return 0;
}

/// Scales of the 16 rows of a panel at column k.
template <class Codec>
MOTET_VEC F panel_scales(const WeightView& w, const std::byte* panel, std::int64_t k) {
  if constexpr (Codec::kFoldBlock > 0) return Codec::fold_f32(widen1<1>(panel + k / Codec::kFoldBlock * 16, 16));
  float scale = 1;
  if constexpr (Codec::kSegments) __builtin_memcpy(&scale, panel + k / w.block_cols * 4, sizeof scale);
  return broadcast(scale);
}

template <class Codec, int S>
MOTET_VEC void decode_dword(const Codec& codec, I raw, F* out) {
  F32::values<S>(codec, raw, out);
}
#if MOTET_HAS_BF16_DOT
template <class Codec, int S>
MOTET_VEC void decode_dword(const Codec& codec, I raw, I* out) {
  out[S] = codec.template pair_along<S>(raw);
  if constexpr (S + 1 < Codec::kPerDword / 2) decode_dword<Codec, S + 1>(codec, raw, out);
}
#endif

/// Bytes of one token's activations in the order of groups.
template <class Codec, class A>
MOTET_VEC std::int64_t packed_x_bytes(std::int64_t cols) {
  using Group = PackedGroup<Codec, A>;
  return round_up((cols + Group::kCols - 1) / Group::kCols * Group::kXBytes, 64);
}

/// One token's activations as dwords in the order in which decode_dword gives vectors, zero past cols.
template <class Codec, class A>
[[gnu::noinline]] void order_for_panels(const std::byte* x, DType dtype, std::int64_t cols, std::byte* out) {
  constexpr std::int64_t P = Codec::kPerDword, kVectors = P / A::kUnit, kRun = 16;  // dwords
  const std::int64_t bytes = dtype == DType::f32 ? 4 : 2, total = packed_x_bytes<Codec, A>(cols);
  std::int64_t done = 0;
  for (std::int64_t k0 = 0; k0 < cols; k0 += kRun * P, x += kRun * P * bytes) {
    alignas(64) std::byte from[kRun * P * A::kBytes], to[kRun * P * A::kBytes];
    const std::int64_t count = cols - k0 < kRun * P ? cols - k0 : kRun * P;
    if (count < kRun * P) __builtin_memset(from, 0, sizeof from);
    convert_activations<A>(x, dtype, count, from);
    for (std::int64_t d = 0; d < kRun; ++d)
      for (std::int64_t s = 0; s < kVectors; ++s)
        for (std::int64_t u = 0; u < A::kUnit; ++u)
          __builtin_memcpy(to + ((d * kVectors + s) * A::kUnit + u) * A::kBytes, from + (d * P + s + u * kVectors) * A::kBytes,
                           A::kBytes);
    const std::int64_t room =
        total - done < static_cast<std::int64_t>(sizeof to) ? total - done : static_cast<std::int64_t>(sizeof to);
    __builtin_memcpy(out + done, to, static_cast<std::size_t>(room));
    done += room;
  }
}

/// sums[t] += the group's columns of 16 rows times each token's activations. `dwords` of the group are there.
template <class Codec, class A, bool kFull>
MOTET_VEC void add_group(const Codec& codec, const std::byte* codes, int dwords, F scale, const std::byte* x, std::int64_t x_stride,
                         std::int64_t tokens, float* sums, std::int64_t sums_stride) {
  using Group = PackedGroup<Codec, A>;
  constexpr int kVectors = Group::kVectors, kAll = Group::kDwords * kVectors;
  typename A::Vector weights[kAll];
  for (int d = 0; d < Group::kDwords; ++d)
    decode_dword<Codec, 0>(codec, kFull || d < dwords ? in_register(iload(codes + 64 * d)) : ibroadcast(0), weights + d * kVectors);
  for (std::int64_t t = 0; t < tokens; ++t, x += x_stride, sums += sums_stride) {
    F even = A::first(weights[0], A::broadcast_x(x)), odd = A::first(weights[1], A::broadcast_x(x + 4));
    for (int v = 2; v < kAll; v += 2) {
      even = A::add(even, weights[v], A::broadcast_x(x + 4 * v));
      odd = A::add(odd, weights[v + 1], A::broadcast_x(x + 4 * v + 4));
    }
    store(sums, fma(fma(odd, broadcast(1.0f), even), scale, load(sums)));
  }
}

/// Panel i of each of R runs of neighbouring panels, and where its rows go: R long streams.
template <int R>
struct PanelRun {
  const std::byte* panel[R];
  float* out[R];  // of the first row that is wanted
  std::int64_t skip[R], lanes[R];

  [[gnu::always_inline]] void place(const MatmulArgs& args, std::int64_t first, std::int64_t panels, std::int64_t i) {
    const std::int64_t run = (panels + R - 1) / R;
    for (int r = 0; r < R; ++r) {
      std::int64_t p = first + r * run + i;
      if (p >= first + panels) p = first + panels - 1;  // the last run is shorter: its last panel again
      panel[r] = args.weight->codes + p * args.weight->panel_bytes;
      const std::int64_t begin = p * 16 < args.row_begin ? args.row_begin : p * 16,
                         end = p * 16 + 16 < args.row_end ? p * 16 + 16 : args.row_end;
      out[r] = args.out + (begin - args.row_begin);
      skip[r] = begin - p * 16;
      lanes[r] = end - begin;
    }
  }
  [[gnu::always_inline]] void store(int r, std::int64_t at, F v) const {
    if (skip[r] == 0) return store_part(out[r] + at, v, lanes[r]);
    alignas(64) float copy[16];
    MOTET_TARGET::store(copy, v);
    __builtin_memcpy(out[r] + at, copy + skip[r], static_cast<std::size_t>(lanes[r]) * sizeof(float));
  }
};

template <class Codec, class A, int R>
[[gnu::noinline]] void few_panels(const MatmulArgs& args, const std::byte* x, std::int64_t x_stride) {
  using Group = PackedGroup<Codec, A>;
  const WeightView& w = *args.weight;
  const Codec codec;
  const std::int64_t first = args.row_begin / 16, panels = (args.row_end + 15) / 16 - first, run = (panels + R - 1) / R;
  const std::int64_t scale_bytes = panel_scale_bytes<Codec>(w);
  const std::int64_t dwords = (w.cols + Codec::kPerDword - 1) / Codec::kPerDword, whole = dwords / Group::kDwords;
  const F final_scale = broadcast(Codec::kTensorScale ? static_cast<float>(w.tensor_scale) : 1.0f);
  alignas(64) float sums[Codec::kMaxFew][R][16];
  for (std::int64_t i = 0; i < run; ++i) {
    PanelRun<R> run_of;
    run_of.place(args, first, panels, i);
    __builtin_memset(sums, 0, sizeof(float) * 16 * R * static_cast<std::size_t>(args.tokens));
    for (std::int64_t g = 0; g < whole; ++g) {
      for (int r = 0; r < R; ++r) {
        const std::byte* codes = run_of.panel[r] + scale_bytes + g * Group::kBytes;
        for (std::int64_t at = 0; at < Group::kBytes; at += 64) prefetch(codes + kAheadBytes + at);
        add_group<Codec, A, true>(codec, codes, Group::kDwords, panel_scales<Codec>(w, run_of.panel[r], g * Group::kCols),
                                  x + g * Group::kXBytes, x_stride, args.tokens, sums[0][r], R * 16);
      }
    }
    if (whole * Group::kDwords < dwords) {
      for (int r = 0; r < R; ++r)
        add_group<Codec, A, false>(codec, run_of.panel[r] + scale_bytes + whole * Group::kBytes,
                                   static_cast<int>(dwords - whole * Group::kDwords),
                                   panel_scales<Codec>(w, run_of.panel[r], whole * Group::kCols), x + whole * Group::kXBytes,
                                   x_stride, args.tokens, sums[0][r], R * 16);
    }
    for (std::int64_t t = 0; t < args.tokens; ++t)
      for (int r = 0; r < R; ++r) run_of.store(r, t * args.out_stride, mul(load(sums[t][r]), final_scale));
  }
}

/// `few` of packed matrices.
template <class Codec, class A>
void few_packed(const MatmulArgs& args) {
  const std::int64_t x_stride = packed_x_bytes<Codec, A>(args.weight->cols);
  for (std::int64_t t = 0; t < args.tokens && !args.encoded; ++t)
    order_for_panels<Codec, A>(args.x + t * args.x_stride, args.x_dtype, args.weight->cols, args.scratch + t * x_stride);
  if (args.tokens <= 4) return few_panels<Codec, A, 4>(args, args.scratch, x_stride);
  few_panels<Codec, A, 2>(args, args.scratch, x_stride);
}

}  // namespace
}  // namespace motet::MOTET_TARGET
