// SPDX-License-Identifier: Apache-2.0
// `many` of int16_dot and int8_dot: like matmul_many.h, a slab of rows is decoded into panels that tiles of tokens run over.
//
//   int16_dot  panel words [k / 2][16 rows][2], signed word dot
//   int8_dot   panel bytes [k / 4][16 rows][4], unsigned activations q + 128; a block's sum starts at -128 times the sum of its
//   codes
// Columns in a dword are in the order in which a codec's bytes give them, the same in the encoded activations. A sum of one scale
// block is exact; it is converted, multiplied by the activations' scale and by the weights', and added in fp32, blocks in order of
// k. A slab holds kIntSlabCols columns: its panels stay in the first-level cache while all tokens pass.
#pragma once

#include "kernels/matmul_int_packed.h"
#include "kernels/matmul_many.h"

namespace motet::MOTET_TARGET {
namespace {

inline constexpr std::int64_t kIntSlabCols = 512, kIntSlabRows = 16 * kTilePanels;
inline constexpr std::int64_t kIntManyTokens = 128;  // encoded at once

/// Columns of one sum: of a scale block, or of a group of activations where that is shorter.
template <class Codec>
inline constexpr std::int64_t kIntBlock = Codec::kFoldBlock < kActivationGroup ? Codec::kFoldBlock : kActivationGroup;

/// One token: whole groups of q, then the groups' scales.
template <int kBytes>
struct ManyEncoded {
  std::int64_t scales, stride;  // bytes
  MOTET_VEC ManyEncoded of(std::int64_t cols) {
    const std::int64_t runs = (cols + kEncoded - 1) / kEncoded, values = runs * kEncoded * kBytes,
                       bytes = values + runs * kEncodedGroups * 4;
    return {values, bytes % 4096 == 0 ? bytes + 64 : bytes};  // tokens a page apart would share a set of the first-level cache
  }
};

template <class Codec, int kBytes>
[[gnu::noinline]] void encode_many(const std::byte* x, DType dtype, std::int64_t cols, std::byte* out) {
  // The order of columns in which Codec::ints gives 4 (or 8) stored columns; words take even bytes, then odd ones.
  static constexpr std::uint8_t kOrders[2][2][8] = {{{0, 1, 2, 3, 4, 5, 6, 7}, {0, 2, 1, 3, 4, 6, 5, 7}},
                                                    {{0, 2, 4, 6, 1, 3, 5, 7}, {0, 4, 2, 6, 1, 5, 3, 7}}};
  constexpr const std::uint8_t* kOrder = kOrders[kIntsPerByte<Codec> - 1][kBytes - 1];
  const std::int64_t bytes = dtype == DType::f32 ? 4 : 2;
  std::byte* scales = out + ManyEncoded<kBytes>::of(cols).scales;
  EncodedRun run;
  for (std::int64_t k = 0; k < cols; k += kEncoded, out += kEncoded * kBytes, scales += kEncodedGroups * 4) {
    encode_run<kBytes>(x + k * bytes, dtype, cols - k, Codec::kIntUnit, run);
    for (std::int64_t i = 0; i < kEncoded; i += 32 * (3 - kBytes)) {
      if constexpr (kBytes == 2) {
        istore(out + 2 * i, order_words(iload(run.q + i), kOrder));
      } else {
        const I low = ibroadcast(0x00FF00FFu), flip = ibroadcast(0x00800080u);  // the low byte of q + 128
        istore(out + i, pack_bytes(iand(ixor(order_words(iload(run.q + i), kOrder), flip), low),
                                   iand(ixor(order_words(iload(run.q + i + 32), kOrder), flip), low)));
      }
    }
    __builtin_memcpy(scales, run.scale, sizeof run.scale);
  }
}

/// A panel of 16 rows in scratch: codes, then of each block 16 scales (fp32) and 16 starts (dwords; int8_dot).
struct IntPanel {
  std::byte* codes;
  float* scales;
  std::byte* starts;
};
struct IntScratch {
  std::int64_t scales, starts, folds, panel, encoded, end;  // `panel`: from one panel to the next
};
template <class Codec, int kBytes>
MOTET_VEC IntScratch int_scratch(std::int64_t cols) {
  constexpr std::int64_t kCodes = kIntSlabCols * 16 * kBytes, kBlocks = kIntSlabCols / kIntBlock<Codec>;
  IntScratch s = {kCodes,
                  kCodes + kBlocks * 64,
                  kCodes + kBlocks * 128,
                  kCodes + kBlocks * 128 + 1024 * (kIntSlabCols / 64 / Codec::kFoldBlock + 1),
                  0,
                  0};
  s.encoded = s.panel * kTilePanels;
  const std::int64_t many = s.encoded + kIntManyTokens * ManyEncoded<kBytes>::of(cols).stride,
                     few = kMaxFewInt<kBytes> * few_encoded_bytes<Codec, kBytes>(cols),
                     packed = kMaxFewInt<kBytes> * PackedEncoded<kBytes>::of(cols).stride;
  s.end = many > few ? many : few;
  s.end = packed > s.end ? packed : s.end;
  return s;
}
template <class Codec, int kBytes>
std::int64_t int_scratch_bytes(std::int64_t cols) noexcept {
  return int_scratch<Codec, kBytes>(cols).end;
}

/// The dwords of one block of 16 rows.
template <class Codec, int kBytes>
MOTET_VEC void emit_ints(const Codec& codec, const I* columns, std::byte* out, std::byte* starts) {
  constexpr int kPer = kIntsPerByte<Codec>, kDwords = static_cast<int>(kIntBlock<Codec>) / Codec::kPerDword;
  I total = izero();
  for (int d = 0; d < kDwords; ++d) {
    I bytes[kPer];
    codec.ints(columns[d], bytes);
    for (int p = 0; p < kPer; ++p, out += 64 * kBytes) {
      if constexpr (kBytes == 2) {
        istore(out, even_words(bytes[p]));
        istore(out + 64, odd_words(bytes[p]));
      } else {
        istore(out, bytes[p]);
        total = dot4(total, ibroadcast(0x80808080u), bytes[p]);
      }
    }
  }
  if constexpr (kBytes == 1) istore(starts, isub(izero(), total));
}

/// Whole groups of columns; those past the matrix are zero.
template <class Codec, int kBytes>
[[gnu::noinline]] void fill_ints(const Panel& p, const IntPanel& out) {
  constexpr std::int64_t P = Codec::kPerDword, kDwords = kIntBlock<Codec> / P;
  const Codec codec;
  const std::byte* rows[16];
  for (int r = 0; r < 16; ++r) rows[r] = p.view.codes + row_of(p, r) * p.view.row_stride + p.k0 * 4 / P;
  fill_folds<Codec>(p);
  const std::int64_t bytes = stored_bytes<Codec>(p.cols), blocks = round_up(p.cols, kActivationGroup) / kIntBlock<Codec>;
  for (std::int64_t at = 0, block = 0; at < bytes; at += 64) {
    I columns[16];
    load_columns(rows, at, bytes - at, columns);
#pragma GCC unroll 1
    for (int d = 0; d < 16 && block < blocks; d += kDwords, ++block) {
      emit_ints<Codec, kBytes>(codec, columns + d, out.codes + block * kIntBlock<Codec> * 16 * kBytes, out.starts + block * 64);
      const I folds = iload(p.folds + block / 4 * 64), by8 = shr<8>(folds), by16 = shr<16>(folds);
      const I low = block % 4 == 0 ? folds : block % 4 == 1 ? by8 : block % 4 == 2 ? by16 : shr<8>(by16);
      store(out.scales + block * 16, Codec::fold_f32(iand(low, ibroadcast(0xFFu))));
    }
  }
}

/// The same from a packed matrix, whose dwords are columns already.
template <class Codec, int kBytes>
[[gnu::noinline]] void fill_ints_from_panel(const Panel& p, const IntPanel& out) {
  constexpr std::int64_t P = Codec::kPerDword, kDwords = kIntBlock<Codec> / P;
  const Codec codec;
  const std::byte* panel = p.view.codes + p.row / 16 * p.view.panel_bytes;
  const std::byte* codes = panel + panel_scale_bytes<Codec>(p.view) + p.k0 / P * 64;
  const std::int64_t dwords = (p.cols + P - 1) / P, blocks = round_up(p.cols, kActivationGroup) / kIntBlock<Codec>;
  for (std::int64_t block = 0; block < blocks; ++block) {
    I columns[kDwords];
    for (std::int64_t d = 0; d < kDwords; ++d)
      columns[d] = block * kDwords + d < dwords ? iload(codes + (block * kDwords + d) * 64) : izero();
    emit_ints<Codec, kBytes>(codec, columns, out.codes + block * kIntBlock<Codec> * 16 * kBytes, out.starts + block * 64);
    const bool there = block * kDwords < dwords;
    store(out.scales + block * 16, there ? panel_scales<Codec>(p.view, panel, p.k0 + block * kIntBlock<Codec>) : zero());
  }
}

/// Codes of the next slab, which the tiles of this one fetch between their sums, each some of the rows: all at once they would wait
/// for the memory.
struct Ahead {
  const std::byte* row;  // of the next row to fetch
  std::int64_t row_stride, bytes, rows;
};
/// All of a slab: its rows, or its panels when the matrix is packed.
template <class Codec>
MOTET_VEC Ahead slab_ahead(const WeightView& w, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  if (w.panel_bytes == 0)
    return {w.codes + row * w.row_stride + stored_bytes<Codec>(col), w.row_stride, stored_bytes<Codec>(cols), rows};
  return {w.codes + row / 16 * w.panel_bytes + panel_scale_bytes<Codec>(w) + col / Codec::kPerDword * 64, w.panel_bytes,
          stored_bytes<Codec>(cols) * 16, (rows + 15) / 16};
}
/// What tile i of `tiles` fetches of it.
MOTET_VEC Ahead share_of(const Ahead& all, std::int64_t i, std::int64_t tiles) {
  const std::int64_t first = all.rows * i / tiles;
  return {all.row + first * all.row_stride, all.row_stride, all.bytes, all.rows * (i + 1) / tiles - first};
}
/// Fetches rows so that a tile that is `done` of `all` through has fetched its share.
MOTET_VEC void fetch_share(Ahead& a, std::int64_t& fetched, std::int64_t done, std::int64_t all) {
  for (; fetched * all < done * a.rows; ++fetched, a.row += a.row_stride)
    for (std::int64_t at = 63; at < a.bytes; at += 64) prefetch(a.row + at);  // the line of byte 0 came with the slab before
}

struct IntTile {
  const std::byte* panel;  // int_scratch of panel 0
  std::int64_t panel_bytes, scales, starts;
  std::int64_t groups;
  const std::byte *x, *x_scales;
  std::int64_t x_stride;
  float* out;
  std::int64_t out_stride;
  std::int64_t rows;
  bool first;         // sums start at zero, not at `out`
  float final_scale;  // multiplies what is stored
  Ahead ahead;
};

/// Makes the compiler leave the sums where they are: the registers belong to the parts.
MOTET_VEC void in_memory(float* sums) { asm volatile("" : : "r"(sums) : "memory"); }

template <class Codec, int kBytes, int T>
[[gnu::noinline]] void int_tile(const IntTile& a) {
  constexpr int P = kTilePanels, kBlocks = static_cast<int>(kActivationGroup / kIntBlock<Codec>);  // per group
  constexpr int kDots = static_cast<int>(kIntBlock<Codec>) * kBytes / 4;                           // per block
  constexpr int kRun = kBytes == 1 && kDotRun < kDots ? kDotRun : 1;
  alignas(64) float sums[P * T * 16];  // of panel p and token t at (t P + p) 16
  for (int p = 0; p < P; ++p)
    for (int t = 0; t < T; ++t)
      store(sums + (t * P + p) * 16,
            a.first || a.rows <= 16 * p ? zero() : load_part(a.out + t * a.out_stride + 16 * p, a.rows - 16 * p));
  const std::byte *panel = a.panel, *scales = a.panel + a.scales, *starts = a.panel + a.starts;
  const std::byte *xs[3] = {a.x, a.x + 4 * a.x_stride, a.x + 8 * a.x_stride}, *x_scales = a.x_scales;
  const std::int64_t stride = a.x_stride, stride3 = 3 * stride, panel_bytes = a.panel_bytes, groups = a.groups;
  Ahead ahead = a.ahead;
  for (std::int64_t g = 0, fetched = 0; g < groups; ++g, x_scales += 4) {
    fetch_share(ahead, fetched, g + 1, groups);
#pragma GCC unroll 1
    for (int b = 0; b < kBlocks; ++b, scales += 64, starts += 64) {
      in_memory(sums);
      I parts[P][T];
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) parts[p][t] = kBytes == 1 ? iload(starts + p * panel_bytes) : izero();
#pragma GCC unroll 1
      for (int d = 0; d < kDots; d += kRun, panel += kRun * 64) {
        I weights[P][kRun];
        for (int p = 0; p < P; ++p)
          for (int i = 0; i < kRun; ++i) weights[p][i] = iload(panel + p * panel_bytes + i * 64);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
          I x[kRun];
#pragma GCC unroll 4
          for (int i = 0; i < kRun; ++i) {
            std::uint32_t dword;
            __builtin_memcpy(&dword, xs[t / 4] + (t % 4 == 3 ? stride3 : t % 4 * stride) + 4 * i, 4);
            x[i] = ibroadcast(dword);
          }
          for (int p = 0; p < P; ++p) {
            if constexpr (kBytes == 1) parts[p][t] = dots<kRun>(parts[p][t], x, weights[p]);
            if constexpr (kBytes == 2) parts[p][t] = dot2(parts[p][t], weights[p][0], x[0]);
          }
        }
        for (int i = 0; i < 3; ++i) xs[i] += 4 * kRun;
      }
      F scale[P];
      for (int p = 0; p < P; ++p) scale[p] = as_float(in_register(iload(scales + p * panel_bytes)));
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        float x_scale;
        __builtin_memcpy(&x_scale, x_scales + t * stride, 4);
        for (int p = 0; p < P; ++p) {
          float* sum = sums + (t * P + p) * 16;
          store(sum, fma(mul(to_float(parts[p][t]), broadcast(x_scale)), scale[p], load(sum)));
        }
      }
    }
  }
  const F scale = broadcast(a.final_scale);
  for (int p = 0; p < P; ++p)
    for (int t = 0; t < T; ++t)
      if (a.rows > 16 * p)
        store_part(a.out + t * a.out_stride + 16 * p, mul(load(sums + (t * P + p) * 16), scale), a.rows - 16 * p);
}

template <class Codec, int kBytes, int T>
MOTET_VEC void int_tile_tokens(const IntTile& a, std::int64_t tokens) {
  if (tokens == T) {
    int_tile<Codec, kBytes, T>(a);
  } else if constexpr (T > 1) {
    int_tile_tokens<Codec, kBytes, T - 1>(a, tokens);
  }
}

/// Rows [row, row + kIntSlabRows) for `tokens` tokens that are encoded in scratch and whose results begin at `out`.
template <class Codec, int kBytes>
[[gnu::noinline]] void run_int_slab(const MatmulArgs& args, std::int64_t row, std::int64_t tokens, float* out) {
  const WeightView& w = *args.weight;
  const IntScratch area = int_scratch<Codec, kBytes>(w.cols);
  const ManyEncoded<kBytes> x = ManyEncoded<kBytes>::of(w.cols);
  const std::int64_t rows = args.row_end - row < kIntSlabRows ? args.row_end - row : kIntSlabRows;
  for (std::int64_t k0 = 0; k0 < w.cols; k0 += kIntSlabCols) {
    const bool last = k0 + kIntSlabCols >= w.cols;
    const std::int64_t cols = last ? w.cols - k0 : kIntSlabCols;
    // The next slab: these rows' next columns, or the next rows' first columns.
    const std::int64_t left = last ? args.row_end - row - kIntSlabRows : rows,
                       next_rows = left < kIntSlabRows ? left : kIntSlabRows, next_col = last ? 0 : k0 + kIntSlabCols;
    const std::int64_t next_cols = w.cols - next_col < kIntSlabCols ? w.cols - next_col : kIntSlabCols;
    const Ahead next = slab_ahead<Codec>(w, last ? row + kIntSlabRows : row, next_rows, next_col, next_cols);
    for (std::int64_t p = 0; p * 16 < rows; ++p) {
      std::byte* at = args.scratch + p * area.panel;
      const Panel panel = {.view = w,
                           .row = row + 16 * p,
                           .rows = rows - 16 * p < 16 ? rows - 16 * p : 16,
                           .k0 = k0,
                           .cols = cols,
                           .out = nullptr,
                           .folds = at + area.folds};
      const IntPanel filled = {at, reinterpret_cast<float*>(at + area.scales), at + area.starts};
      w.panel_bytes > 0 ? fill_ints_from_panel<Codec, kBytes>(panel, filled) : fill_ints<Codec, kBytes>(panel, filled);
    }
    const std::int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;  // even tiles: 13 = 7 + 6, not 12 + 1
    for (std::int64_t i = 0, first = 0; i < tiles; ++i) {
      const std::int64_t count = tokens / tiles + (i < tokens % tiles ? 1 : 0);
      const std::byte* encoded = args.scratch + area.encoded + first * x.stride;
      const float final_scale = Codec::kTensorScale && last ? static_cast<float>(w.tensor_scale) : 1.0f;
      int_tile_tokens<Codec, kBytes, kTileTokens>({.panel = args.scratch,
                                                   .panel_bytes = area.panel,
                                                   .scales = area.scales,
                                                   .starts = area.starts,
                                                   .groups = (cols + kActivationGroup - 1) / kActivationGroup,
                                                   .x = encoded + k0 * kBytes,
                                                   .x_scales = encoded + x.scales + k0 / kActivationGroup * 4,
                                                   .x_stride = x.stride,
                                                   .out = out + first * args.out_stride + row - args.row_begin,
                                                   .out_stride = args.out_stride,
                                                   .rows = rows,
                                                   .first = k0 == 0,
                                                   .final_scale = final_scale,
                                                   .ahead = share_of(next, i, tiles)},
                                                  count);
      first += count;
    }
  }
}

template <class Codec, int kBytes>
void int_many(const MatmulArgs& args) noexcept {
  const std::int64_t cols = args.weight->cols, stride = ManyEncoded<kBytes>::of(cols).stride;
  std::byte* encoded = args.scratch + int_scratch<Codec, kBytes>(cols).encoded;
  const bool kept = args.encoded && args.tokens <= kIntManyTokens;
  for (std::int64_t first = 0; first < args.tokens; first += kIntManyTokens) {
    const std::int64_t tokens = args.tokens - first < kIntManyTokens ? args.tokens - first : kIntManyTokens;
    for (std::int64_t t = 0; t < tokens && !kept; ++t)
      encode_many<Codec, kBytes>(args.x + (first + t) * args.x_stride, args.x_dtype, cols, encoded + t * stride);
    for (std::int64_t row = args.row_begin; row < args.row_end; row += kIntSlabRows)
      run_int_slab<Codec, kBytes>(args, row, tokens, args.out + first * args.out_stride);
  }
}

}  // namespace
}  // namespace motet::MOTET_TARGET
