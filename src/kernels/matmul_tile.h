// SPDX-License-Identifier: Apache-2.0
// `many` on the tile unit. The panels of matmul_many.h are its operand B as they are: 16 units of a panel, 32 columns of 16 rows,
// are one tile; operand A is up to 16 tokens x 32 columns.
//
// 32 rows x kTileCols columns are decoded at a time, into panels that stay in the first-level cache while all tokens pass over
// them, two panels x two tiles of tokens at once: eight tiles are four sums, two of A, two of B. Sums lie in scratch between
// blocks of columns, 1 KiB per tile.
//
// Every sum: 32 columns from a multiple of 32 on (16 where scale blocks do not allow it) are summed by the instruction, even and
// odd columns apart, then added to the sum so far; with kSegments that sum is of one scale block and multiplied in fp32. So its
// bits depend on the matrix and on k, not on tokens, rows or calls. bf16x2_tile adds the products of the high parts of 32 columns,
// then those of the low parts. The instruction treats subnormal operands and sums as zero: an activation below 2^-126, or one
// whose low part is, is off by up to 2^-126.
//
// Evidence: one core of a Granite Rapids, December 2026, CPU time, other programs beside; the instruction reaches 3.88 TFLOP/s.
// MXFP4, 2880 columns, bf16_tile: 16 tokens 0.48, 32 0.78, 64 1.2, 128 1.5 TFLOP/s. Decoding 32 rows takes 3 us.
// Tiles alone, panels in caches: all columns at a time 2.4; blocks of 480, tokens loaded past the first-level cache 2.8 (the sums
// go out and in, 8 KiB each time), but then decoding and 32 tokens do not fit beside them. Whole kernel in blocks of 384 or 512
// columns: 0 to 4 % faster from 64 tokens on, 25 % slower with 16 and 32.
#pragma once

#include "kernels/matmul_many.h"
#if MOTET_TILE_MODEL
#include "kernels/tile_model.h"
#else
#include "kernels/tile_unit.h"
#endif

namespace motet::MOTET_TARGET {
namespace {

#if MOTET_TILE_MODEL
using Tiles = TileModel;
#else
using Tiles = TileUnit;
#endif

inline constexpr std::int64_t kTileCols = 256, kTileBytes = 1024;
inline constexpr std::int64_t kPairRows = 32;  // of the two panels that one tile block covers
inline constexpr std::int64_t kWideSlabRows = 256;
inline constexpr std::int64_t kSumTiles = 256;           // room for sums
inline constexpr std::int64_t kMostTokenTiles = 32;      // of one pass: another one reads all weights again
inline constexpr std::int64_t kResidentBytes = 1 << 20;  // of activations that stay in L2 while rows pass
inline constexpr std::int64_t kEncodedBytes = 4 << 20;   // of activations that one pass encodes

/// Tokens of one pass in tiles of equally many rows, at most 16: 33 = 11 + 11 + 11. Where they do not divide, the last tiles
/// overlap (49 = 13 + 13 + 13 + 10, of which the last begins 3 early): a shape of its own would have to be configured, which takes
/// 300 cycles, again and again, and tokens that are computed twice get the same bits.
struct TokenTiles {
  std::int64_t tokens, count, rows;
  explicit TokenTiles(std::int64_t n) : tokens(n), count((n + 15) / 16), rows((n + count - 1) / count) {}
  std::int64_t first(std::int64_t tile) const { return (tile + 1) * rows <= tokens ? tile * rows : tokens - rows; }
};

/// Where A tiles lie. One plane: rows of bf16 as the caller prepared them. Two: [tile][cols / 32][high, low][16 rows][32].
template <int kPlanes>
struct TileRows {
  const std::byte* at;
  std::int64_t stride;  // one plane: of rows; two: of tiles
  const std::byte* tile(const TokenTiles& tiles, std::int64_t t) const { return at + (kPlanes == 1 ? tiles.first(t) : t) * stride; }
  std::int64_t row_stride() const { return kPlanes == 1 ? stride : 64; }
  static std::int64_t offset(std::int64_t k) { return kPlanes == 1 ? 2 * k : k / 32 * 2 * kTileBytes + k % 32 * 2; }
};

/// Sums of one or two panels x one or two tiles of tokens over columns [k0, k0 + cols).
struct TileBlock {
  const std::byte* panels;
  std::int64_t panel_bytes;
  const std::byte* x[2];
  std::int64_t x_stride;
  std::int64_t k0, cols;  // cols: a multiple of the step
  std::int64_t segment;   // columns under one scale; cols when there are no scale blocks
  const float* scales;    // [segments][kPairRows]
  std::int64_t tokens;    // of a tile
  float *sums, *part;     // tiles one after the other: [tokens][panels]; part: room for four
  bool first;             // sums start at zero
};

template <int kPanels, int kTokens, class Use>
MOTET_VEC void each_sum(const Use& use) {
  use.template operator()<0>();
  if constexpr (kPanels == 2) use.template operator()<1>();
  if constexpr (kTokens == 2) use.template operator()<2>();
  if constexpr (kTokens == 2 && kPanels == 2) use.template operator()<3>();
}

/// Columns [k, end) of the block, kStep at a time: A in tiles 4 and 5, B in 6 and 7, sums 2 t + p.
template <int kPanels, int kTokens, int kPlanes, int kStep>
MOTET_VEC void multiply_tiles(Tiles& tiles, const TileBlock& b, std::int64_t k, std::int64_t end) {
  const std::byte* panel = b.panels + (k - b.k0) * 32;
  for (; k < end; k += kStep, panel += 32 * kStep) {
    const std::int64_t offset = TileRows<kPlanes>::offset(k);
    tiles.template load<6>(panel, 64);
    if constexpr (kPanels == 2) tiles.template load<7>(panel + b.panel_bytes, 64);
    for (int plane = 0; plane < kPlanes; ++plane) {
      tiles.template load<4>(b.x[0] + offset + plane * kTileBytes, b.x_stride);
      tiles.template dot<0, 4, 6>();
      if constexpr (kPanels == 2) tiles.template dot<1, 4, 7>();
      if constexpr (kTokens == 2) {
        tiles.template load<5>(b.x[1] + offset + plane * kTileBytes, b.x_stride);
        tiles.template dot<2, 5, 6>();
        if constexpr (kPanels == 2) tiles.template dot<3, 5, 7>();
      }
    }
  }
}

/// sums = sums + part x scale, tile by tile.
template <int kPanels, int kTokens>
MOTET_VEC void add_segment(const TileBlock& b, const float* scales, bool first) {
  each_sum<kPanels, kTokens>([&]<int C>() __attribute__((always_inline)) {
    const F scale = load(scales + C % 2 * 16);
    float *sums = b.sums + C * 256, *part = b.part + C * 256;
    for (std::int64_t t = 0; t < b.tokens; ++t)
      store(sums + t * 16, fma(load(part + t * 16), scale, first ? zero() : load(sums + t * 16)));
  });
}

template <bool kSegments, int kPanels, int kTokens, int kPlanes, int kStep>
[[gnu::noinline]] void tile_block(Tiles& tiles, const TileBlock& b) {
  const auto store_to = [&](float* to) __attribute__((always_inline)) {
    each_sum<kPanels, kTokens>([&]<int C>() __attribute__((always_inline)) { tiles.template store<C>(to + C * 256, 64); });
  };
  const auto clear_tiles = [&]() __attribute__((always_inline)) {
    each_sum<kPanels, kTokens>([&]<int C>() __attribute__((always_inline)) { tiles.template zero<C>(); });
  };
  if constexpr (kSegments) {
    const float* scales = b.scales;
    for (std::int64_t k = b.k0; k < b.k0 + b.cols; k += b.segment, scales += kPairRows) {
      clear_tiles();
      const std::int64_t end = b.k0 + b.cols;
      multiply_tiles<kPanels, kTokens, kPlanes, kStep>(tiles, b, k, k + b.segment < end ? k + b.segment : end);
      store_to(b.part);
      add_segment<kPanels, kTokens>(b, scales, b.first && k == b.k0);
    }
  } else {
    if (b.first) {
      clear_tiles();
    } else {
      each_sum<kPanels, kTokens>([&]<int C>() __attribute__((always_inline)) { tiles.template load<C>(b.sums + C * 256, 64); });
    }
    multiply_tiles<kPanels, kTokens, kPlanes, kStep>(tiles, b, b.k0, b.k0 + b.cols);
    store_to(b.sums);
  }
}

template <bool kSegments, int kPlanes, int kStep>
MOTET_VEC void tile_block_of(Tiles& tiles, const TileBlock& b, bool two_panels, bool two_tiles) {
  if (two_panels && two_tiles) return tile_block<kSegments, 2, 2, kPlanes, kStep>(tiles, b);
  if (two_panels) return tile_block<kSegments, 2, 1, kPlanes, kStep>(tiles, b);
  if (two_tiles) return tile_block<kSegments, 1, 2, kPlanes, kStep>(tiles, b);
  tile_block<kSegments, 1, 1, kPlanes, kStep>(tiles, b);
}

/// Scratch: panels, folded scale bytes, scales of segments, products of a segment, sums, encoded activations, activations of `few`.
struct TileScratch {
  std::int64_t folds, scales, part, sums, encoded, few, end;
};
MOTET_VEC std::int64_t between(std::int64_t value, std::int64_t least, std::int64_t most) {
  return value < least ? least : value < most ? value : most;
}
/// Bytes of the activations of a tile of tokens, all columns.
template <int kPlanes>
MOTET_VEC std::int64_t token_tile_bytes(std::int64_t cols) {
  return round_up(cols, 32) / 32 * kPlanes * kTileBytes;
}
/// Tiles of tokens that one pass takes at most.
template <int kPlanes>
MOTET_VEC std::int64_t pass_tiles(std::int64_t cols) {
  return kPlanes == 1 ? kMostTokenTiles : between(kEncodedBytes / token_tile_bytes<kPlanes>(cols), 2, kMostTokenTiles);
}
/// Bytes of the folded scales of a panel, all columns.
template <class Codec>
MOTET_VEC std::int64_t fold_bytes(std::int64_t cols) {
  if constexpr (Codec::kFoldBlock > 0) return round_up((cols + Codec::kFoldBlock - 1) / Codec::kFoldBlock, 64) * 16;
  return 0;
}
template <class Codec, class Few, int kPlanes>
MOTET_VEC TileScratch tile_scratch(std::int64_t cols) {
  const std::int64_t rows = Codec::kElementBytes > 0 ? kWideSlabRows : kPairRows;
  TileScratch s = {};
  s.folds = rows * kTileCols * 2;
  s.scales = s.folds + kWideSlabRows / 16 * fold_bytes<Codec>(cols);
  s.part = s.scales + (Codec::kSegments ? kTileCols / kSmallestSegment * kPairRows * 4 : 0);
  s.sums = s.part + (Codec::kSegments ? 4 * kTileBytes : 0);
  s.encoded = s.sums + kSumTiles * kTileBytes;
  s.few = s.encoded + (kPlanes == 2 ? pass_tiles<2>(cols) * token_tile_bytes<2>(cols) : 0);
  s.end = s.few + (Codec::kFoldBlock > 0 ? Codec::kMaxFew * ordered_bytes<Codec, Few>(cols) : 0);
  return s;
}

/// Rows that pass before the next block of columns. Few while the activations stay in L2, so that each row is read in one run;
/// else, and where columns lie in runs, as many as there is room for sums.
MOTET_VEC std::int64_t slab_rows(std::int64_t tiles, std::int64_t tile_bytes, bool by_rows) {
  if (by_rows && tiles * tile_bytes <= kResidentBytes) return kPairRows;
  return between(kSumTiles / tiles * 16, kPairRows, kWideSlabRows);
}

/// What the functions of one pass share: `tokens` tokens of args from `token` on.
template <int kPlanes>
struct TilePass {
  const MatmulArgs& args;
  std::int64_t token;
  TokenTiles tokens;
  TileRows<kPlanes> x;
  TileScratch area;
  int step;  // columns of an A tile
};

/// Zero units past the last column of each panel, up to a whole tile.
MOTET_VEC void pad_panels(std::byte* panels, std::int64_t count, std::int64_t panel_bytes, std::int64_t cols, int per_dword) {
  const std::int64_t written = round_up(cols, per_dword) * 32;
  for (std::int64_t p = 0; p < count && written < panel_bytes; ++p)
    __builtin_memset(panels + p * panel_bytes + written, 0, static_cast<std::size_t>(panel_bytes - written));
}

MOTET_VEC Panel panel_of(const Panel& slab, std::int64_t p, std::int64_t out_bytes, std::int64_t folds_bytes) {
  Panel panel = slab;
  panel.row += 16 * p;
  panel.rows = slab.rows - 16 * p < 16 ? slab.rows - 16 * p : 16;
  panel.out += p * out_bytes;
  panel.folds += p * folds_bytes;
  return panel;
}

/// The folded scales of all columns of a slab: once, as a scale byte of 16 rows is as dear to transpose as four.
template <class Codec>
[[gnu::noinline]] void fill_slab_folds(const Panel& slab) {
  if constexpr (Codec::kFoldBlock > 0) {
    for (std::int64_t p = 0; p * 16 < slab.rows && slab.view.panel_bytes == 0; ++p)
      fill_folds<Codec>(panel_of(slab, p, 0, fold_bytes<Codec>(slab.view.cols)));
  }
}

/// Panels of the slab's rows and columns.
template <class Codec>
[[gnu::noinline]] void fill_panels(const Panel& slab, std::int64_t panel_bytes) {
  if (few_reads<Codec>(slab.view)) {
    for (std::int64_t p = 0; p * 16 < slab.rows; ++p) {
      const Panel panel = panel_of(slab, p, panel_bytes, fold_bytes<Codec>(slab.view.cols));
      slab.view.panel_bytes > 0 ? fill_from_panel<Codec, Bf16Dot>(panel) : fill_from_rows<Codec, Bf16Dot>(panel);
    }
  } else if constexpr (Codec::kElementBytes > 0) {
    fill_from_columns<Codec, Bf16Dot>(slab, panel_bytes);
  }
  pad_panels(slab.out, (slab.rows + 15) / 16, panel_bytes, slab.cols, Codec::kPerDword);
}

/// Shapes for tiles of `tokens` rows and `step` columns.
MOTET_VEC void configure_tiles(Tiles& tiles, std::int64_t tokens, int step) {
  TileConfig config;
  for (int c = 0; c < 4; ++c) config.set(c, tokens, 64);
  for (int a = 4; a < 6; ++a) config.set(a, tokens, 2 * step);
  for (int b = 6; b < 8; ++b) config.set(b, step / 2, 64);
  tiles.configure(config);
}

/// All tokens of the pass over one pair of panels (or a last panel alone) and one block of columns.
template <class Codec, int kPlanes>
[[gnu::noinline]] void run_pair(Tiles& tiles, const TilePass<kPlanes>& pass, TileBlock b, bool two_panels) {
  for (std::int64_t t = 0; t < pass.tokens.count; t += 2) {
    const bool two_tiles = t + 1 < pass.tokens.count;
    b.x[0] = pass.x.tile(pass.tokens, t);
    b.x[1] = two_tiles ? pass.x.tile(pass.tokens, t + 1) : b.x[0];
    if (!Codec::kSegments || pass.step == 32)
      tile_block_of<Codec::kSegments, kPlanes, 32>(tiles, b, two_panels, two_tiles);
    else if constexpr (Codec::kSegments)
      tile_block_of<Codec::kSegments, kPlanes, 16>(tiles, b, two_panels, two_tiles);
    b.sums += 4 * kTileBytes / 4;
  }
}

/// Sums of rows [row, row + rows) to the caller's output.
template <int kPlanes>
[[gnu::noinline]] void store_sums(const TilePass<kPlanes>& pass, std::int64_t row, std::int64_t rows, float final_scale) {
  const MatmulArgs& args = pass.args;
  const F scale = broadcast(final_scale);
  const auto* sums = reinterpret_cast<const float*>(args.scratch + pass.area.sums);
  for (std::int64_t r = 0; r < rows; r += 16) {
    const float* panel = sums + (r / kPairRows * pass.tokens.count * 2 + r / 16 % 2) * 256;
    float* out = args.out + pass.token * args.out_stride + (row - args.row_begin) + r;
    for (std::int64_t t = 0; t < pass.tokens.count; ++t, panel += 512)
      for (std::int64_t i = 0; i < pass.tokens.rows; ++i)
        store_part(out + (pass.tokens.first(t) + i) * args.out_stride, mul(load(panel + i * 16), scale), rows - r);
  }
}

/// Rows [row, row + rows), as many as there is room for sums, all columns, all tokens of the pass.
template <class Codec, class Few, int kPlanes>
[[gnu::noinline]] void run_tile_slab(Tiles& tiles, const TilePass<kPlanes>& pass, std::int64_t row, std::int64_t rows) {
  const WeightView& w = *pass.args.weight;
  std::byte* const scratch = pass.args.scratch;
  const bool by_rows = few_reads<Codec>(w);
  std::byte* const folds = scratch + pass.area.folds;
  fill_slab_folds<Codec>({.view = w, .row = row, .rows = rows, .k0 = 0, .cols = w.cols, .out = nullptr, .folds = folds});
  for (std::int64_t k0 = 0, cols = 0; k0 < w.cols; k0 += cols) {
    cols = slab_cols<Codec>(w, k0, kTileCols);
    const std::int64_t padded = round_up(cols, pass.step), panel_bytes = padded * 32;
    Panel slab = {.view = w,
                  .row = row,
                  .rows = rows,
                  .k0 = k0,
                  .cols = cols,
                  .out = scratch,
                  .folds = nullptr,
                  .ahead = kPairRows,
                  .far = true};
    if (!by_rows) fill_panels<Codec>(slab, panel_bytes);
    for (std::int64_t r = 0; r < rows; r += kPairRows) {
      slab.row = row + r;
      slab.rows = rows - r < kPairRows ? rows - r : kPairRows;
      if constexpr (Codec::kFoldBlock > 0) slab.folds = folds + r / 16 * fold_bytes<Codec>(w.cols) + k0 / Codec::kFoldBlock * 16;
      if (by_rows) fill_panels<Codec>(slab, panel_bytes);
      TileBlock b = {.panels = scratch + (by_rows ? 0 : r / 16 * panel_bytes),
                     .panel_bytes = panel_bytes,
                     .x = {},
                     .x_stride = pass.x.row_stride(),
                     .k0 = k0,
                     .cols = padded,
                     .segment = padded,
                     .scales = nullptr,
                     .tokens = pass.tokens.rows,
                     .sums = reinterpret_cast<float*>(scratch + pass.area.sums + r / 16 * pass.tokens.count * kTileBytes),
                     .part = reinterpret_cast<float*>(scratch + pass.area.part),
                     .first = k0 == 0};
      if constexpr (Codec::kSegments) {
        auto* scales = reinterpret_cast<float*>(scratch + pass.area.scales);
        b.segment = w.block_cols < cols ? w.block_cols : padded;
        fill_segment_scales<Codec>(w, slab.row, slab.rows, k0, cols, {kPairRows, cols, b.segment}, scales);
        b.scales = scales;
      }
      run_pair<Codec>(tiles, pass, b, slab.rows > 16);
    }
  }
  store_sums(pass, row, rows, Codec::kTensorScale ? static_cast<float>(w.tensor_scale) : 1.0f);
  if constexpr (Codec::kFoldBlock > 0)
    few_where_no_fold<Codec, Few>(pass.args, {row, row + rows, pass.token, pass.tokens.tokens}, scratch + pass.area.few);
}

/// Rows of x as two planes of A tiles: high = x rounded to bf16, low = the rest rounded to bf16.
[[gnu::noinline]] inline void encode_tiles(const MatmulArgs& args, std::int64_t token, const TokenTiles& tokens, std::byte* out) {
  const std::int64_t steps = round_up(args.weight->cols, 32) / 32;
  for (std::int64_t t = 0; t < tokens.count; ++t, out += token_tile_bytes<2>(args.weight->cols))
    for (std::int64_t i = 0; i < tokens.rows; ++i) {
      const auto* x = reinterpret_cast<const float*>(args.x + (token + tokens.first(t) + i) * args.x_stride);
      for (std::int64_t s = 0; s < steps; ++s) {
        const auto split = split_bf16(load(x + 32 * s), load(x + 32 * s + 16));
        istore(out + s * 2 * kTileBytes + i * 64, split.high);
        istore(out + s * 2 * kTileBytes + kTileBytes + i * 64, split.low);
      }
    }
}

template <class Codec, class Few, int kPlanes>
void many_on_tiles(const MatmulArgs& args) {
  const WeightView& w = *args.weight;
  const TileScratch area = tile_scratch<Codec, Few, kPlanes>(w.cols);
  const std::int64_t most = 16 * pass_tiles<kPlanes>(w.cols), passes = (args.tokens + most - 1) / most;
  const std::int64_t tile_bytes = token_tile_bytes<kPlanes>(w.cols);
  int step = 32;
  if constexpr (Codec::kSegments) step = w.block_cols % 32 == 0 || w.block_cols >= w.cols ? 32 : 16;
  Tiles tiles;
  for (std::int64_t p = 0, token = 0; p < passes; ++p) {
    const TokenTiles tokens(args.tokens / passes + (p < args.tokens % passes ? 1 : 0));
    TileRows<kPlanes> x = {args.x + token * args.x_stride, args.x_stride};
    if constexpr (kPlanes == 2) {
      x = {args.scratch + area.encoded, tile_bytes};
      if (!args.encoded || passes > 1) encode_tiles(args, token, tokens, args.scratch + area.encoded);
    }
    configure_tiles(tiles, tokens.rows, step);
    const TilePass<kPlanes> pass = {args, token, tokens, x, area, step};
    const std::int64_t slab = slab_rows(tokens.count, tile_bytes, few_reads<Codec>(w));
    for (std::int64_t row = args.row_begin; row < args.row_end; row += slab)
      run_tile_slab<Codec, Few>(tiles, pass, row, args.row_end - row < slab ? args.row_end - row : slab);
    token += tokens.tokens;
  }
  tiles.release();
}

/// bf16_tile, and bf16x2_tile on bf16 rows, which have no low part.
template <class Codec>
void many_bf16_tile(const MatmulArgs& args) noexcept {
  many_on_tiles<Codec, Bf16Dot, 1>(args);
}
template <class Codec>
void many_bf16x2_tile(const MatmulArgs& args) noexcept {
  args.x_dtype == DType::bf16 ? many_on_tiles<Codec, F32, 1>(args) : many_on_tiles<Codec, F32, 2>(args);
}

template <class Codec, bool kSplit>
std::int64_t tile_scratch_bytes(std::int64_t cols) noexcept {
  return kSplit ? tile_scratch<Codec, F32, 2>(cols).end : tile_scratch<Codec, Bf16Dot, 1>(cols).end;
}

}  // namespace
}  // namespace motet::MOTET_TARGET
