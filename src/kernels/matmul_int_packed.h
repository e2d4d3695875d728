// SPDX-License-Identifier: Apache-2.0
// int16_dot and int8_dot on packed matrices (formats/packed.h): `few`, and how `many` fills its panels.
//
// A block of 16 rows is decoded once into signed bytes in registers; each token's bytes are broadcast from memory. Per block of one
// scale: exact integer sum (as matmul_int_few.h: q + 128 in the unsigned operand), one conversion, times the activations' scale,
// one addition in fp32. Blocks in order of k, the same for every number of tokens.
#pragma once

#include "kernels/matmul_int_few.h"
#include "kernels/matmul_packed.h"

namespace motet::MOTET_TARGET {
namespace {

/// One token: of each 64 columns 64 high bytes + 128 (int16_dot) and 64 low bytes (int8_dot: q + 128), columns of a dword in the
/// order in which Codec::ints gives them; then the scales of groups of 32.
template <int kBytes>
struct PackedEncoded {
  std::int64_t scales, stride;  // bytes
  MOTET_VEC PackedEncoded of(std::int64_t cols) {
    const std::int64_t runs = (cols + kEncoded - 1) / kEncoded, values = runs * kEncoded * kBytes;
    return {values, values + runs * kEncodedGroups * 4};
  }
};

template <class Codec, int kBytes>
[[gnu::noinline]] void encode_for_panels(const std::byte* x, DType dtype, std::int64_t cols, std::byte* out) {
  static constexpr std::uint8_t kOrders[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 2, 4, 6, 1, 3, 5, 7}};
  constexpr const std::uint8_t* kOrder = kOrders[kIntsPerByte<Codec> - 1];
  const std::int64_t bytes = dtype == DType::f32 ? 4 : 2;
  std::byte* scales = out + PackedEncoded<kBytes>::of(cols).scales;
  const I low = ibroadcast(0x00FF00FFu), flip = ibroadcast(0x80808080u);
  EncodedRun run;
  for (std::int64_t k = 0; k < cols; k += kEncoded, scales += kEncodedGroups * 4) {
    encode_run<kBytes>(x + k * bytes, dtype, cols - k, Codec::kIntUnit, run);
    for (std::int64_t i = 0; i < kEncoded; i += 64, out += 64 * kBytes) {
      const I a = order_words(iload(run.q + i), kOrder), b = order_words(iload(run.q + i + 32), kOrder);
      const I lower = pack_bytes(iand(a, low), iand(b, low));
      if constexpr (kBytes == 2) {
        istore(out, ixor(pack_bytes(iand(shr<8>(a), low), iand(shr<8>(b), low)), flip));
        istore(out + 64, lower);
      } else {
        istore(out, ixor(lower, flip));
      }
    }
    __builtin_memcpy(scales, run.scale, sizeof run.scale);
  }
}

MOTET_VEC I broadcast_dword(const std::byte* p) {
  std::uint32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return ibroadcast(value);
}

/// Columns under one scale and one group of activations, and their decoded vectors.
template <class Codec>
inline constexpr std::int64_t kPackedBlock = Codec::kFoldBlock < kActivationGroup ? Codec::kFoldBlock : kActivationGroup;
template <class Codec>
inline constexpr int kPackedInts = static_cast<int>(kPackedBlock<Codec> / 4);

/// sums[t] += one block of 16 rows times each token's columns from k on. `dwords` of the block are there.
template <class Codec, int kBytes, bool kFull>
MOTET_VEC void add_int_block(const Codec& codec, const std::byte* codes, std::int64_t dwords, F scale, const std::byte* x,
                             std::int64_t scales, std::int64_t x_stride, std::int64_t k, std::int64_t tokens, float* sums,
                             std::int64_t sums_stride) {
  constexpr int kPer = kIntsPerByte<Codec>, N = kPackedInts<Codec>;
  I weights[N], offset[N];
  for (int d = 0; d < N / kPer; ++d)
    codec.ints(kFull || d < dwords ? in_register(iload(codes + 64 * d)) : izero(), weights + d * kPer);
  for (int i = 0; i < N; ++i) offset[i] = ibroadcast(0x80808080u);
  const I start = isub(izero(), dots<N>(izero(), offset, weights));
  x += k / 64 * 64 * kBytes + k % 64;
  scales += k / kActivationGroup * 4 - (k / 64 * 64 * kBytes + k % 64);
#pragma GCC unroll 1
  for (std::int64_t t = 0; t < tokens; ++t, x += x_stride, sums += sums_stride) {
    I q[N];
    for (int i = 0; i < N; ++i) q[i] = broadcast_dword(x + 4 * i);
    I total = dots<N>(start, q, weights);
    if constexpr (kBytes == 2) {
      for (int i = 0; i < N; ++i) q[i] = broadcast_dword(x + 64 + 4 * i);
      total = dots<N>(shl<8>(total), q, weights);
    }
    store(sums, fma(mul(to_float(total), F32::broadcast_x(x + scales)), scale, load(sums)));
  }
}

template <class Codec, int kBytes, int R>
[[gnu::noinline]] void int_few_panels(const MatmulArgs& args, const std::byte* x) {
  constexpr std::int64_t kBlock = kPackedBlock<Codec>, kDwords = kBlock / Codec::kPerDword;
  const WeightView& w = *args.weight;
  const Codec codec;
  const auto encoded = PackedEncoded<kBytes>::of(w.cols);
  const std::int64_t first = args.row_begin / 16, panels = (args.row_end + 15) / 16 - first, run = (panels + R - 1) / R;
  const std::int64_t scale_bytes = panel_scale_bytes<Codec>(w), dwords = (w.cols + Codec::kPerDword - 1) / Codec::kPerDword;
  const F final_scale = broadcast(Codec::kTensorScale ? static_cast<float>(w.tensor_scale) : 1.0f);
  alignas(64) float sums[kMaxFewInt<kBytes>][R][16];
  for (std::int64_t i = 0; i < run; ++i) {
    PanelRun<R> run_of;
    run_of.place(args, first, panels, i);
    __builtin_memset(sums, 0, sizeof(float) * 16 * R * static_cast<std::size_t>(args.tokens));
    std::int64_t d = 0;
    for (; d + kDwords <= dwords; d += kDwords) {
      for (int r = 0; r < R; ++r) {
        const std::byte* codes = run_of.panel[r] + scale_bytes + d * 64;
        for (std::int64_t at = 0; at < kDwords * 64; at += 64) prefetch(codes + kAheadBytes + at);
        add_int_block<Codec, kBytes, true>(codec, codes, kDwords, panel_scales<Codec>(w, run_of.panel[r], d * Codec::kPerDword), x,
                                           encoded.scales, encoded.stride, d * Codec::kPerDword, args.tokens, sums[0][r], R * 16);
      }
    }
    for (int r = 0; r < R && d < dwords; ++r)
      add_int_block<Codec, kBytes, false>(codec, run_of.panel[r] + scale_bytes + d * 64, dwords - d,
                                          panel_scales<Codec>(w, run_of.panel[r], d * Codec::kPerDword), x, encoded.scales,
                                          encoded.stride, d * Codec::kPerDword, args.tokens, sums[0][r], R * 16);
    for (std::int64_t t = 0; t < args.tokens; ++t)
      for (int r = 0; r < R; ++r) run_of.store(r, t * args.out_stride, mul(load(sums[t][r]), final_scale));
  }
}

/// `few` of packed matrices.
template <class Codec, int kBytes>
void int_few_packed(const MatmulArgs& args) {
  const std::int64_t x_stride = PackedEncoded<kBytes>::of(args.weight->cols).stride;
  for (std::int64_t t = 0; t < args.tokens && !args.encoded; ++t)
    encode_for_panels<Codec, kBytes>(args.x + t * args.x_stride, args.x_dtype, args.weight->cols, args.scratch + t * x_stride);
  if (args.tokens <= 4) return int_few_panels<Codec, kBytes, 4>(args, args.scratch);
  int_few_panels<Codec, kBytes, 2>(args, args.scratch);
}

}  // namespace
}  // namespace motet::MOTET_TARGET
