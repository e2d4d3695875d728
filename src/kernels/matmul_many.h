// SPDX-License-Identifier: Apache-2.0
// `many`: any number of tokens. A slab of rows is decoded once into panels that stay in L2, then tiles of 16 kTilePanels rows x
// up to kTileTokens tokens run over it. Panel: [k / kUnit][16 rows][kUnit], so that a tile needs no shuffle: weights are whole
// vectors, activations are broadcast from memory by the load ports.
//
// Every sum runs over k in order in one accumulator (with kSegments: one per scale block, then over blocks), so its bits depend
// on neither tile, slab nor the number of tokens. Blocks of k only store the sum and load it again.
#pragma once

#include "kernels/matmul_packed.h"

namespace motet::MOTET_TARGET {
namespace {

// A slab is 512 KiB of fp32 or 256 KiB of bf16 panels at most: half of the smallest L2 aimed at (1 MiB). Matrices that lie
// transposed are cut into wider, shorter slabs: each k then reads one longer run.
inline constexpr std::int64_t kSlabRows = 32, kSlabCols = 4096, kWideRows = 128, kWideCols = 1024;
inline constexpr std::int64_t kSmallestSegment = 16;
inline constexpr std::int64_t kBlockBytes = 512 << 10;  // activations of the tokens that one pass over the slabs serves

struct Tile {
  const std::byte* panel;
  std::int64_t panel_bytes;     // from one panel to the next
  std::int64_t units, segment;  // of kUnit elements; segment = units when there are no scale blocks
  const float* scales;          // [segments][16 * kTilePanels] at scale_stride floats
  std::int64_t scale_stride;
  const std::byte* x;
  std::int64_t x_stride;
  float* out;
  std::int64_t out_stride;
  std::int64_t rows;  // valid rows, 1 .. 16 * kTilePanels
  bool first;         // sums start at zero, not at `out`
  float final_scale;  // multiplies what is stored
};

template <class A, int T>
MOTET_VEC void run_tile(F (&sums)[kTilePanels][T], const std::byte* panel, std::int64_t panel_bytes, const std::byte* x,
                        std::int64_t x_stride, std::int64_t units) {
  const std::byte* xs[3] = {x, x + 4 * x_stride, x + 8 * x_stride};  // three pointers and two strides reach 12 tokens
  const std::int64_t stride3 = 3 * x_stride;
#pragma GCC unroll 2
  for (std::int64_t u = 0; u < units; ++u) {
    typename A::Vector weights[kTilePanels];
    for (int p = 0; p < kTilePanels; ++p) weights[p] = A::load_panel(panel + p * panel_bytes + u * 64);
    for (int t = 0; t < T; ++t) {
      const auto xt = A::broadcast_x(xs[t / 4] + (t % 4 == 3 ? stride3 : t % 4 * x_stride) + u * 4);
      for (int p = 0; p < kTilePanels; ++p) sums[p][t] = A::add(sums[p][t], weights[p], xt);
    }
  }
}

template <class A, bool kSegments, int T>
[[gnu::noinline]] void tile(const Tile& a) {
  F sums[kTilePanels][T];
  for (int p = 0; p < kTilePanels; ++p)
    for (int t = 0; t < T; ++t)
      sums[p][t] = a.first || a.rows <= 16 * p ? zero() : load_part(a.out + t * a.out_stride + 16 * p, a.rows - 16 * p);
  if constexpr (kSegments) {
    const float* scales = a.scales;
    for (std::int64_t u = 0; u < a.units; u += a.segment, scales += a.scale_stride) {
      F part[kTilePanels][T];
      for (int p = 0; p < kTilePanels; ++p)
        for (int t = 0; t < T; ++t) part[p][t] = zero();
      run_tile<A, T>(part, a.panel + u * 64, a.panel_bytes, a.x + u * 4, a.x_stride,
                     a.units - u < a.segment ? a.units - u : a.segment);
      for (int p = 0; p < kTilePanels; ++p)
        for (int t = 0; t < T; ++t) sums[p][t] = fma(part[p][t], load(scales + 16 * p), sums[p][t]);
    }
  } else {
    run_tile<A, T>(sums, a.panel, a.panel_bytes, a.x, a.x_stride, a.units);
  }
  const F scale = broadcast(a.final_scale);
  for (int p = 0; p < kTilePanels; ++p)
    for (int t = 0; t < T; ++t)
      if (a.rows > 16 * p) store_part(a.out + t * a.out_stride + 16 * p, mul(sums[p][t], scale), a.rows - 16 * p);
}

template <class A, bool kSegments, int T>
MOTET_VEC void tile_tokens(const Tile& a, std::int64_t tokens) {
  if (tokens == T) {
    tile<A, kSegments, T>(a);
  } else if constexpr (T > 1) {
    tile_tokens<A, kSegments, T - 1>(a, tokens);
  }
}

/// A panel (16 rows, the last row again past the end) or a slab being filled, columns [k0, k0 + cols).
struct Panel {
  const WeightView& view;
  std::int64_t row, rows;  // first row, valid rows
  std::int64_t k0, cols;
  std::byte* out;
  std::byte* folds;  // scale bytes of the 16 rows, 4 blocks in a dword: [blocks / 4][16]
  std::int64_t ahead =
      16;            // rows from a byte that is decoded to the one that is prefetched: of the next panel, past tiles if need be
  bool far = false;  // prefetch to L2 only: what comes between drives it out of the first-level cache, and that takes as long
};

MOTET_VEC std::int64_t row_of(const Panel& p, int lane) { return p.row + (lane < p.rows ? lane : p.rows - 1); }

template <class Codec, class A, class Fold>
MOTET_VEC void emit(const Codec& codec, I raw, const Fold& fold, std::byte* out) {
  typename A::Vector weights[Codec::kPerDword / A::kUnit];
  A::across(codec, raw, fold, weights);
  for (int s = 0; s < Codec::kPerDword / A::kUnit; ++s) A::store_panel(out + 64 * s, weights[s]);
}

/// Bytes `offset` .. of 16 rows as columns: result i holds dword i of every row. At most `bytes` of each row are read.
MOTET_VEC void load_columns(const std::byte* const* rows, std::int64_t offset, std::int64_t bytes, I* columns) {
  if (bytes >= 64) {
#if MOTET_HAS_TILES
    return load_transposed(rows, offset, columns);
#endif
    for (int r = 0; r < 16; ++r) columns[r] = iload(rows[r] + offset);
  } else {
    for (int r = 0; r < 16; ++r) columns[r] = iload_part(rows[r] + offset, bytes);
  }
  transpose(columns);
}

/// Turns the scale bytes of 16 rows into columns.
template <class Codec>
[[gnu::noinline]] void fill_folds(const Panel& p) {
  const std::byte* rows[16];
  for (int r = 0; r < 16; ++r) rows[r] = p.view.scales + row_of(p, r) * p.view.scale_row_stride + p.k0 / Codec::kFoldBlock;
  const std::int64_t bytes = (p.cols + Codec::kFoldBlock - 1) / Codec::kFoldBlock;
  for (std::int64_t at = 0; at < bytes; at += 64) {
    I columns[16];
    load_columns(rows, at, bytes - at, columns);
    for (int i = 0; i < 16; ++i) istore(p.folds + at * 16 + i * 64, columns[i]);
  }
}

/// The dwords of one scale dword (4 blocks), block kBlock first.
template <class Codec, class A, int kBlock, bool kFull>
MOTET_VEC void emit_blocks(const Codec& codec, const I* columns, I scales, int groups, std::byte* out) {
  constexpr int kGroups = Codec::kFoldBlock / Codec::kPerDword;  // dwords in a block
  constexpr std::int64_t kBytes = 64 * Codec::kPerDword / A::kUnit;
  const auto fold = A::template fold<Codec>(iand(shr<8 * kBlock>(scales), ibroadcast(0xFFu)));
#pragma GCC unroll 1
  for (int g = 0; g < kGroups; ++g)
    if (kFull || g < groups) emit<Codec, A>(codec, columns[g], fold, out + g * kBytes);
  if constexpr (kBlock < 3) {
    if (kFull || groups > kGroups)
      emit_blocks<Codec, A, kBlock + 1, kFull>(codec, columns + kGroups, scales, groups - kGroups, out + kGroups * kBytes);
  }
}

/// 16 dwords of 16 rows, of which the first `groups` are wanted (all when kFull).
template <class Codec, class A, bool kFull>
MOTET_VEC void emit_columns(const Codec& codec, const I* columns, const std::byte* folds, int groups, std::byte* out) {
  constexpr std::int64_t kBytes = 64 * Codec::kPerDword / A::kUnit;
  if constexpr (Codec::kFoldBlock > 0) {
    constexpr int kGroups = 4 * static_cast<int>(Codec::kFoldBlock) / Codec::kPerDword;  // dwords under one scale dword
#pragma GCC unroll 1
    for (int g = 0; g < 16; g += kGroups)
      if (kFull || g < groups)
        emit_blocks<Codec, A, 0, kFull>(codec, columns + g, iload(folds + g / kGroups * 64), groups - g, out + g * kBytes);
  } else {
#pragma GCC unroll 1
    for (int g = 0; g < 16; ++g)
      if (kFull || g < groups) emit<Codec, A>(codec, columns[g], 0, out + g * kBytes);
  }
}

/// A panel from rows that are contiguous along k. Where scales are folded, p.folds is filled.
template <class Codec, class A>
[[gnu::noinline]] void fill_from_rows(const Panel& p) {
  constexpr std::int64_t P = Codec::kPerDword, kBytes = 64 * P / A::kUnit;  // panel bytes per dword
  const Codec codec;
  const std::byte* rows[16];
  for (int r = 0; r < 16; ++r) rows[r] = p.view.codes + row_of(p, r) * p.view.row_stride + p.k0 * 4 / P;
  const std::int64_t bytes = stored_bytes<Codec>(p.cols);
  std::byte* out = p.out;
  for (std::int64_t at = 0; at < bytes; at += 64, out += 16 * kBytes) {
    I columns[16];
    load_columns(rows, at, bytes - at, columns);
    for (int r = 0; r < 16; ++r) {
      const std::byte* next = rows[r] + p.ahead * p.view.row_stride + at;
      p.far ? prefetch_l2(next) : prefetch(next);
    }
    const std::byte* folds = p.folds;
    if constexpr (Codec::kFoldBlock > 0)
      folds += at / 64 * (16 * P / Codec::kFoldBlock) * 16;  // 16 bytes (one per row) for each block
    if (bytes - at >= 64)
      emit_columns<Codec, A, true>(codec, columns, folds, 16, out);
    else
      emit_columns<Codec, A, false>(codec, columns, folds, static_cast<int>((bytes - at + 3) / 4), out);
  }
}

/// A panel from a packed matrix: its dwords are columns already.
template <class Codec, class A>
[[gnu::noinline]] void fill_from_panel(const Panel& p) {
  constexpr std::int64_t P = Codec::kPerDword, kBytes = 64 * P / A::kUnit;
  const Codec codec;
  const std::byte* panel = p.view.codes + p.row / 16 * p.view.panel_bytes;
  const std::byte* codes = panel + panel_scale_bytes<Codec>(p.view) + p.k0 / P * 64;
  const std::int64_t dwords = (p.cols + P - 1) / P;
  std::byte* out = p.out;
  if constexpr (Codec::kFoldBlock > 0) {
    constexpr std::int64_t kDwords = Codec::kFoldBlock / P;
    const std::byte* scales = panel + p.k0 / Codec::kFoldBlock * 16;
    for (std::int64_t d = 0; d < dwords; d += kDwords, scales += 16) {
      const auto fold = A::template fold<Codec>(widen1<1>(scales, 16));
      for (std::int64_t i = d; i < d + kDwords && i < dwords; ++i, codes += 64, out += kBytes) {
        prefetch(codes + kAheadBytes);
        emit<Codec, A>(codec, in_register(iload(codes)), fold, out);
      }
    }
  } else {
    for (std::int64_t d = 0; d < dwords; ++d, codes += 64, out += kBytes) {
      prefetch(codes + kAheadBytes);
      emit<Codec, A>(codec, in_register(iload(codes)), 0, out);
    }
  }
}

/// 16 elements of column k, one per row, at the low end of each dword.
template <int kElementBytes>
MOTET_VEC I load_elements(const Panel& p, std::int64_t k) {
  const std::byte* at = p.view.codes + p.row * p.view.row_stride + k * p.view.col_stride;
  if constexpr (kElementBytes == 1) {
    if (p.view.row_stride == 1) return widen1<1>(at, p.rows);
    if (p.view.row_stride == 2) return widen1<2>(at, p.rows);
  } else if constexpr (kElementBytes == 2) {
    if (p.view.row_stride == 2) return widen2<1>(at, p.rows);
    if (p.view.row_stride == 4) return widen2<2>(at, p.rows);
  } else {
    if (p.view.row_stride == 4) return iload_part(at, 4 * p.rows);
  }
  std::uint32_t lanes[16] = {};
  for (std::int64_t r = 0; r < p.rows; ++r) __builtin_memcpy(&lanes[r], at + r * p.view.row_stride, kElementBytes);
  return iload(lanes);
}

/// All panels of a slab from a matrix that lies transposed: each k is one run of neighbouring rows.
template <class Codec, class A>
[[gnu::noinline]] void fill_from_columns(const Panel& slab, std::int64_t panel_bytes) {
  constexpr int P = Codec::kPerDword, kBytes = Codec::kElementBytes;
  constexpr std::int64_t kAhead = 16;  // columns
  const Codec codec;
  const WeightView& w = slab.view;
  const std::int64_t run_bytes = (slab.rows - 1) * w.row_stride + kBytes;
  std::byte* out = slab.out;
  for (std::int64_t k = 0; k < slab.cols; k += P, out += 64 * P / A::kUnit) {
    for (std::int64_t i = 0; i < P && k + kAhead + i < slab.cols; ++i) {
      const std::byte* next = w.codes + slab.row * w.row_stride + (slab.k0 + k + kAhead + i) * w.col_stride;
      for (std::int64_t at = 0; at < run_bytes; at += 64) prefetch(next + at);
    }
    for (std::int64_t r = 0; r < slab.rows; r += 16) {
      const Panel p = {.view = w,
                       .row = slab.row + r,
                       .rows = slab.rows - r < 16 ? slab.rows - r : 16,
                       .k0 = 0,
                       .cols = 0,
                       .out = nullptr,
                       .folds = nullptr};
      I raw = load_elements<kBytes>(p, slab.k0 + k);
      if constexpr (P >= 2) {
        if (k + 1 < slab.cols) raw = ior(raw, shl<32 / P>(load_elements<kBytes>(p, slab.k0 + k + 1)));
      }
      if constexpr (P >= 4) {
        if (k + 2 < slab.cols) raw = ior(raw, shl<16>(load_elements<kBytes>(p, slab.k0 + k + 2)));
        if (k + 3 < slab.cols) raw = ior(raw, shl<24>(load_elements<kBytes>(p, slab.k0 + k + 3)));
      }
      emit<Codec, A>(codec, raw, 0, out + r / 16 * panel_bytes);
    }
  }
}

/// Sizes that depend on the matrix alone.
struct Blocking {
  std::int64_t slab_rows, cols, segment;  // columns of a slab and of a scale block inside it
};

template <class Codec>
MOTET_VEC Blocking blocking(const WeightView& w) {
  const bool rows = few_reads<Codec>(w);
  Blocking b = {rows ? kSlabRows : kWideRows, rows ? kSlabCols : kWideCols, 0};
  if constexpr (Codec::kSegments) {
    if (w.block_cols < b.cols) b.cols = b.cols / w.block_cols * w.block_cols;
    b.segment = w.block_cols < b.cols ? w.block_cols : b.cols;
  }
  return b;
}

/// Columns from k0 on that are decoded together, at most `limit`: whole scale blocks, or a part of one.
template <class Codec>
MOTET_VEC std::int64_t slab_cols(const WeightView& w, std::int64_t k0, std::int64_t limit) {
  std::int64_t cols = limit;
  if constexpr (Codec::kSegments) {
    const std::int64_t edge = (k0 / w.block_cols + 1) * w.block_cols - k0;
    cols = w.block_cols <= limit ? limit / w.block_cols * w.block_cols : edge < limit ? edge : limit;
  }
  return w.cols - k0 < cols ? w.cols - k0 : cols;
}

/// Scratch: panels, then scales of segments or folded scale bytes, then the activations of `few`.
struct Scratch {
  std::int64_t scales, few, end;
};
template <class Codec, class A>
MOTET_VEC Scratch scratch_layout(std::int64_t cols) {
  const std::int64_t stored = round_up(cols, 8);
  const auto area = [stored](std::int64_t rows, std::int64_t limit) { return rows * (stored < limit ? stored : limit); };
  const std::int64_t narrow = area(kSlabRows, kSlabCols), wide = Codec::kElementBytes > 0 ? area(kWideRows, kWideCols) : 0;
  const std::int64_t panels = round_up((narrow > wide ? narrow : wide) * A::kBytes, 64);
  std::int64_t scales = 0;
  if (Codec::kSegments) scales = (narrow > wide ? narrow : wide) / kSmallestSegment * 4 + kWideRows * 4;
  if (Codec::kFoldBlock > 0) scales = 1024 * (kSlabCols / 64 / (Codec::kFoldBlock > 0 ? Codec::kFoldBlock : 1));
  const std::int64_t ordered = Codec::kMaxFew * ordered_bytes<Codec, A>(cols);
  return {panels, panels + scales, panels + scales + ordered};
}

template <class Codec, class A>
std::int64_t scratch_bytes(std::int64_t cols) noexcept {
  return scratch_layout<Codec, A>(cols).end;
}

/// Scales of the segments of a slab, [segment][rows].
template <class Codec>
[[gnu::noinline]] void fill_segment_scales(const WeightView& w, std::int64_t row, std::int64_t rows, std::int64_t k0,
                                           std::int64_t cols, const Blocking& b, float* out) {
  if (w.panel_bytes > 0) {
    for (std::int64_t k = k0; k < k0 + cols; k += b.segment, out += b.slab_rows)
      for (std::int64_t r = 0; r < rows; r += 16)
        store(out + r, panel_scales<Codec>(w, w.codes + (row + r) / 16 * w.panel_bytes, k));
    return;
  }
  const std::int64_t edge = (row / w.block_rows + 1) * w.block_rows - row;  // first row of the next block
  for (std::int64_t k = k0; k < k0 + cols; k += b.segment, out += b.slab_rows) {
    float value = Codec::scale(w, row, k);
    for (std::int64_t r = 0, next = edge; r < b.slab_rows; ++r) {
      if (r == next && r < rows) {
        value = Codec::scale(w, row + r, k);
        next += w.block_rows;
      }
      out[r] = value;
    }
  }
}

/// `few` over the rows whose scales cannot be folded exactly. Which way a row goes depends on its own bytes alone.
struct RowsAndTokens {
  std::int64_t row, row_end, token, tokens;
};
template <class Codec, class A>
[[gnu::noinline]] void few_where_no_fold(const MatmulArgs& args, const RowsAndTokens& range, std::byte* scratch) {
  if (Codec::rows_fold(*args.weight, range.row, range.row_end - range.row)) return;
  for (std::int64_t n = range.row; n < range.row_end; ++n) {
    if (Codec::row_folds(*args.weight, n)) continue;
    MatmulArgs one = args;
    one.row_begin = n;
    one.row_end = n + 1;
    one.scratch = scratch;
    one.encoded = false;
    for (std::int64_t t = range.token, end = t + range.tokens; t < end; t += Codec::kMaxFew) {
      one.tokens = end - t < Codec::kMaxFew ? end - t : Codec::kMaxFew;
      one.x = args.x + t * args.x_stride;
      one.out = args.out + t * args.out_stride + n - args.row_begin;
      few<Codec, A>(one);
    }
  }
}

/// One slab, all its columns, for `tokens` tokens from `token` on.
template <class Codec, class A>
[[gnu::noinline]] void run_slab(const MatmulArgs& args, const Blocking& b, std::int64_t row, std::int64_t token,
                                std::int64_t tokens) {
  const WeightView& w = *args.weight;
  const Scratch area = scratch_layout<Codec, A>(w.cols);
  auto* scales = reinterpret_cast<float*>(args.scratch + area.scales);
  const std::int64_t rows = args.row_end - row < b.slab_rows ? args.row_end - row : b.slab_rows;
  for (std::int64_t k0 = 0, cols = 0; k0 < w.cols; k0 += cols) {
    cols = slab_cols<Codec>(w, k0, b.cols);
    const std::int64_t panel_bytes = round_up(cols, 8) * 16 * A::kBytes;
    const Panel slab = {
        .view = w, .row = row, .rows = rows, .k0 = k0, .cols = cols, .out = args.scratch, .folds = args.scratch + area.scales};
    if (few_reads<Codec>(w)) {
      for (std::int64_t p = 0; p * 16 < rows; ++p) {
        Panel panel = slab;
        panel.row += 16 * p;
        panel.rows = rows - 16 * p < 16 ? rows - 16 * p : 16;
        panel.out += p * panel_bytes;
        if constexpr (Codec::kFoldBlock > 0) {
          if (w.panel_bytes == 0) fill_folds<Codec>(panel);
        }
        w.panel_bytes > 0 ? fill_from_panel<Codec, A>(panel) : fill_from_rows<Codec, A>(panel);
      }
    } else if constexpr (Codec::kElementBytes > 0) {
      fill_from_columns<Codec, A>(slab, panel_bytes);
    }
    if constexpr (Codec::kSegments) fill_segment_scales<Codec>(w, row, rows, k0, cols, b, scales);

    const std::int64_t groups = (tokens + kTileTokens - 1) / kTileTokens;  // even groups: 13 = 7 + 6, not 12 + 1
    std::int64_t first = token;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t count = tokens / groups + (g < tokens % groups ? 1 : 0);
      for (std::int64_t r = 0; r < rows; r += 16 * kTilePanels) {
        Tile a = {.panel = args.scratch + r / 16 * panel_bytes,
                  .panel_bytes = panel_bytes,
                  .units = (cols + A::kUnit - 1) / A::kUnit,
                  .segment = (b.segment + A::kUnit - 1) / A::kUnit,
                  .scales = scales + r,
                  .scale_stride = b.slab_rows,
                  .x = args.x + first * args.x_stride + k0 * A::kBytes,
                  .x_stride = args.x_stride,
                  .out = args.out + first * args.out_stride + (row - args.row_begin) + r,
                  .out_stride = args.out_stride,
                  .rows = rows - r < 16 * kTilePanels ? rows - r : 16 * kTilePanels,
                  .first = k0 == 0,
                  .final_scale = 1.0f};
        if constexpr (Codec::kTensorScale) {
          if (k0 + cols == w.cols) a.final_scale = static_cast<float>(w.tensor_scale);
        }
        tile_tokens<A, Codec::kSegments, kTileTokens>(a, count);
      }
      first += count;
    }
  }
  if constexpr (Codec::kFoldBlock > 0) few_where_no_fold<Codec, A>(args, {row, row + rows, token, tokens}, args.scratch + area.few);
}

template <class Codec, class A>
void many(const MatmulArgs& args) noexcept {
  const Blocking b = blocking<Codec>(*args.weight);
  std::int64_t block = kBlockBytes / (args.x_stride > 0 ? args.x_stride : 1);
  block = block < 2 * kTileTokens ? 2 * kTileTokens : block;
  for (std::int64_t t = 0; t < args.tokens; t += block)
    for (std::int64_t row = args.row_begin; row < args.row_end; row += b.slab_rows)
      run_slab<Codec, A>(args, b, row, t, args.tokens - t < block ? args.tokens - t : block);
}

}  // namespace
}  // namespace motet::MOTET_TARGET
