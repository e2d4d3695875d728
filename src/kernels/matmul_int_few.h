// SPDX-License-Identifier: Apache-2.0
// `few` of int16_dot and int8_dot: codes that are small integers times a scale, activations as integers (encode_int.h).
//
// A step is 64 V stored bytes of a row as signed bytes, spread so that each lane of 32 bits collects 4 V neighbouring stored bytes:
// one scale, one conversion to fp32 and one addition for all of them.
//   lanes of quad g (128 bits), V = 1: dwords 0 1 2 3 of quad g    V = 2: dwords 0|1 2|3 of vector 0, of vector 1
//                               V = 4: quad g of vector 0, 1, 2, 3
// The unsigned operand of the byte dot is the activation: q + 128, and for 16 bits the two bytes of q, high + 128 and low, with
// q = 256 high + low. What 128 adds, 128 times the sum of the codes, is taken off where a lane starts:
//   16 bits: ((start + dot(high + 128, w)) << 8) + dot(low, w)        8 bits: start + dot(q + 128, w)
// These are exact in 32 bits, and in fp32 where the codec's sums stay below 2^24 (12 x 32767 x 32 does).
#pragma once

#include "kernels/encode_int.h"
#include "kernels/matmul_few.h"

namespace motet::MOTET_TARGET {
namespace {

template <class Codec>
inline constexpr bool kHasInts = requires {
  Codec::kIntUnit;
};
/// Codes in a stored byte.
template <class Codec>
inline constexpr int kIntsPerByte = Codec::kPerDword / 4;

template <int kBytes>
inline constexpr int kMaxFewInt = kBytes == 2 ? kMaxFewInt16 : kMaxFewInt8;

/// Vectors of the next step, with `left` vectors (the last may be partial) to go.
template <class Codec>
MOTET_VEC int step_vectors(std::int64_t left) {
  return Codec::kIntVectors == 4 && left >= 3 ? 4 : left >= 2 ? 2 : 1;
}
template <class Codec>
MOTET_VEC std::int64_t vectors_of(std::int64_t cols) {
  return (cols + 64 * kIntsPerByte<Codec> - 1) / (64 * kIntsPerByte<Codec>);
}

template <int V>
MOTET_VEC void spread(I* v) {
  static_assert(V == 1 || V == 2 || V == 4);
  if constexpr (V == 4) {
    const I a = even_dwords(v[0], v[1]), b = odd_dwords(v[0], v[1]), c = even_dwords(v[2], v[3]), d = odd_dwords(v[2], v[3]);
    v[0] = even_dwords(a, c), v[1] = odd_dwords(a, c), v[2] = even_dwords(b, d), v[3] = odd_dwords(b, d);
  } else if constexpr (V == 2) {
    const I a = even_dwords(v[0], v[1]), b = odd_dwords(v[0], v[1]);
    v[0] = a, v[1] = b;
  }
}

/// Bytes of one token's step: kBytes planes of V kIntsPerByte vectors, high bytes first, then 16 scales.
template <class Codec, int kBytes, int V>
inline constexpr std::int64_t kIntStepBytes = (kBytes * V * kIntsPerByte<Codec> + 1) * 64;

template <class Codec, int kBytes>
MOTET_VEC std::int64_t few_encoded_bytes(std::int64_t cols) {
  return (vectors_of<Codec>(cols) + Codec::kIntVectors - 1) / Codec::kIntVectors * kIntStepBytes<Codec, kBytes, Codec::kIntVectors>;
}

/// One byte of each of 64 words (kPer = 1) or dwords (kPer = 2): bits kShift .. kShift + 7.
template <int kShift, int kPer>
MOTET_VEC I byte_plane(const std::int16_t* q) {
  const auto part = [q](int i) { return iand(shr<kShift>(iload(q + 32 * i)), ibroadcast(kPer == 2 ? 0x000000FFu : 0x00FF00FFu)); };
  if constexpr (kPer == 1) return pack_bytes(part(0), part(1));
  return pack_bytes(pack_words(part(0), part(1)), pack_words(part(2), part(3)));
}

/// One step's activations from element `first` of an encoded run.
template <class Codec, int kBytes, int V>
MOTET_VEC std::byte* encode_step(const EncodedRun& run, std::int64_t first, std::byte* out) {
  constexpr int kPer = kIntsPerByte<Codec>;
  const I flip = ibroadcast(0x80808080u);
  I even[kBytes][V], odd[kBytes][V];
  for (int v = 0; v < V; ++v) {
    const std::int16_t* q = run.q + first + v * 64 * kPer;
    even[kBytes - 1][v] = byte_plane<0, kPer>(q);
    if constexpr (kPer == 2) odd[kBytes - 1][v] = byte_plane<16, kPer>(q);
    if constexpr (kBytes == 2) even[0][v] = byte_plane<8, kPer>(q);
    if constexpr (kBytes == 2 && kPer == 2) odd[0][v] = byte_plane<24, kPer>(q);
  }
  for (int b = 0; b < kBytes; ++b) {
    spread<V>(even[b]);
    if constexpr (kPer == 2) spread<V>(odd[b]);
    for (int v = 0; v < V; ++v) {
      istore(out, b == 0 ? ixor(even[b][v], flip) : even[b][v]);
      if constexpr (kPer == 2) istore(out + 64, b == 0 ? ixor(odd[b][v], flip) : odd[b][v]);
      out += 64 * kPer;
    }
  }
  float scale[16];
  for (int l = 0; l < 16; ++l) scale[l] = run.scale[(first + lane_byte<V>(l) * kPer) / kActivationGroup];
  store(reinterpret_cast<float*>(out), load(scale));
  return out + 64;
}

/// One token, zeros past cols.
template <class Codec, int kBytes>
[[gnu::noinline]] void encode_few(const std::byte* x, DType dtype, std::int64_t cols, std::byte* out) {
  constexpr std::int64_t kCols = 64 * kIntsPerByte<Codec>;  // of one vector
  const std::int64_t bytes = dtype == DType::f32 ? 4 : 2;
  EncodedRun run;
  for (std::int64_t k = 0; k < cols; k += kEncoded) {
    const std::int64_t count = cols - k < kEncoded ? cols - k : kEncoded;
    encode_run<kBytes>(x + k * bytes, dtype, count, Codec::kIntUnit, run);
    for (std::int64_t at = 0; at < count;) {
      const int v = step_vectors<Codec>(vectors_of<Codec>(count - at));
      if constexpr (Codec::kIntVectors == 4) {
        if (v == 4) out = encode_step<Codec, kBytes, 4>(run, at, out);
      }
      if (v == 2) out = encode_step<Codec, kBytes, 2>(run, at, out);
      if (v == 1) out = encode_step<Codec, kBytes, 1>(run, at, out);
      at += v * kCols;
    }
  }
}

/// A step of R rows: N vectors of signed bytes, and in each lane -128 times their sum and the scale. In memory, not in registers:
/// these belong to the sums, and each of these vectors serves several tokens when it is loaded.
template <int R, int N>
struct IntStep {
  alignas(64) std::byte bytes[N][R][64];
  alignas(64) std::byte start[R][64];
  alignas(64) float scale[R][16];
};

/// total[p] += plane p of G tokens times a step of R rows: P R G chains of dots side by side, as one takes five cycles and two can
/// start in each.
template <int P, int R, int N, int G>
MOTET_VEC void add_planes(const IntStep<R, N>& step, const std::byte* x, std::int64_t x_stride, I (&total)[P][G][R]) {
  constexpr int kRun = N < kDotRun ? N : kDotRun;
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < N; i += kRun, x += kRun * 64) {
    I weights[R][kRun];
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < kRun; ++j) weights[r][j] = iload(step.bytes[i + j][r]);
    for (int p = 0; p < P; ++p)
      for (int g = 0; g < G; ++g) {
        I q[kRun];
        for (int j = 0; j < kRun; ++j) q[j] = in_register(iload(x + g * x_stride + 64 * (p * N + j)));
        for (int r = 0; r < R; ++r) total[p][g][r] = dots<kRun>(total[p][g][r], q, weights[r]);
      }
  }
}

/// Adds a step of R rows for G tokens to `sums`: 16 of row r and token t at (t R + r) 16.
template <int kBytes, int R, int N, int G>
MOTET_VEC void add_tokens(const IntStep<R, N>& step, const std::byte* x, std::int64_t x_stride, float* sums) {
  constexpr int P = kBytes == 2 && 2 * R * G <= kIntRows * kIntTokens ? 2 : 1;  // few chains: both planes at once
  I total[P][G][R];
  for (int g = 0; g < G; ++g)
    for (int r = 0; r < R; ++r) {
      total[0][g][r] = iload(step.start[r]);
      if constexpr (P == 2) total[1][g][r] = izero();
    }
  add_planes(step, x, x_stride, total);
  if constexpr (kBytes == 2) {
    for (int g = 0; g < G; ++g)
      for (int r = 0; r < R; ++r) {
        total[0][g][r] = shl<8>(total[0][g][r]);
        if constexpr (P == 2) total[0][g][r] = iadd(total[0][g][r], total[1][g][r]);
      }
    if constexpr (P == 1) add_planes(step, x + N * 64, x_stride, total);
  }
  for (int g = 0; g < G; ++g) {
    const F x_scale = load(reinterpret_cast<const float*>(x + g * x_stride + kBytes * N * 64));
    for (int r = 0; r < R; ++r, sums += 16)
      store(sums, fma(mul(to_float(total[0][g][r]), x_scale), load(step.scale[r]), load(sums)));
  }
}

/// What steps are multiplied by and added to.
struct IntTokens {
  const std::byte* x;
  std::int64_t x_stride, tokens;
  float* sums;
};

template <int kBytes, int R, int N, int G>
MOTET_VEC void add_group(const IntStep<R, N>& step, const IntTokens& a, std::int64_t first, std::int64_t count) {
  if (count == G)
    add_tokens<kBytes, R, N, G>(step, a.x + first * a.x_stride, a.x_stride, a.sums + first * R * 16);
  else if constexpr (G > 1)
    add_group<kBytes, R, N, G - 1>(step, a, first, count);
}

template <int kBytes, int R, int N>
[[gnu::noinline]] void add_int_step(const IntStep<R, N>& step, const IntTokens& a) {
  const std::int64_t groups = (a.tokens + kIntTokens - 1) / kIntTokens;  // even groups: 8 = 4 + 4, not 6 + 2
  for (std::int64_t i = 0, first = 0; i < groups; ++i) {
    const std::int64_t count = a.tokens / groups + (i < a.tokens % groups ? 1 : 0);
    add_group<kBytes, R, N, kIntTokens>(step, a, first, count);
    first += count;
  }
}

template <class Codec, int R, int V>
MOTET_VEC void decode_step(const Codec& codec, int r, I (&raw)[V], F scale, IntStep<R, V * kIntsPerByte<Codec>>& out) {
  constexpr int kPer = kIntsPerByte<Codec>, N = V * kPer;
  static_assert(Codec::kMaxInt <= kLargestDotted);
  I bytes[N], offset[N];
  for (int i = 0; i < N; ++i) offset[i] = ibroadcast(0x80808080u);
  spread<V>(raw);
  for (int v = 0; v < V; ++v) codec.ints(raw[v], bytes + v * kPer);
  for (int i = 0; i < N; ++i) istore(out.bytes[i][r], bytes[i]);
  istore(out.start[r], isub(izero(), dots<N>(izero(), offset, bytes)));
  store(out.scale[r], scale);
}

/// Lane i of the result: the sum of the lanes of vector i of 16.
MOTET_VEC F sums_of_each(const float* vectors) {
  F v[16];
  for (int i = 0; i < 16; ++i) v[i] = load(vectors + 16 * i);
  const auto added = [](I a, I b) { return fma(as_float(a), broadcast(1.0f), as_float(b)); };
  for (int n = 8; n >= 4; n /= 2)
    for (int i = 0; i < n; ++i) {
      const I a = as_dwords(v[2 * i]), b = as_dwords(v[2 * i + 1]);
      v[i] = added(even_dwords(a, b), odd_dwords(a, b));
    }
  for (int n = 2; n >= 1; n /= 2)
    for (int i = 0; i < n; ++i) {
      const I a = as_dwords(v[2 * i]), b = as_dwords(v[2 * i + 1]);
      v[i] = added(even_quads(a, b), odd_quads(a, b));
    }
  return v[0];
}

/// The step at a row's end, from stored byte `at` on.
template <class Codec, int kBytes, int R, int V>
MOTET_VEC void add_last_step(const Codec& codec, const WeightView& w, const std::byte* const (&codes)[R],
                             const typename Codec::RowScales (&scales)[R], std::int64_t at, std::int64_t bytes,
                             const IntTokens& a) {
  IntStep<R, V * kIntsPerByte<Codec>> step;
  for (int r = 0; r < R; ++r) {
    I raw[V];
    for (int v = 0; v < V; ++v) raw[v] = bytes > 64 * v ? iload_part(codes[r] + at + 64 * v, bytes - 64 * v) : izero();
    decode_step(codec, r, raw, Codec::fold_f32(Codec::template last_lane_bytes<V>(w, scales[r], at)), step);
  }
  add_int_step<kBytes>(step, a);
}

template <class Codec, int kBytes, int R>
[[gnu::noinline]] void int_few_rows(const MatmulArgs& args, const std::byte* x, std::int64_t x_stride) {
  constexpr int V = Codec::kIntVectors;
  const WeightView& w = *args.weight;
  const Codec codec;
  const std::int64_t rows = args.row_end - args.row_begin, run = (rows + R - 1) / R;
  const std::int64_t row_bytes = stored_bytes<Codec>(w.cols), steps = row_bytes / (64 * V);
  // What lies kAheadBytes further in the stream of rows: some rows and a rest further, the gap between rows skipped.
  const std::int64_t rest = kAheadBytes % row_bytes, ahead = kAheadBytes / row_bytes * w.row_stride + rest,
                     gap = w.row_stride - row_bytes;
  const float final_scale = Codec::kTensorScale ? static_cast<float>(w.tensor_scale) : 1.0f;
  alignas(64) float sums[(kMaxFewInt<kBytes> * R + 15) / 16 * 256];
  const auto used = static_cast<std::size_t>((args.tokens * R + 15) / 16 * 256);

  for (std::int64_t i = 0; i < run; ++i) {
    // 1. Row i of every run.
    const std::byte* codes[R];
    typename Codec::RowScales scales[R];
    std::int64_t row[R];
    for (int r = 0; r < R; ++r) {
      row[r] = args.row_begin + r * run + i;
      if (row[r] >= args.row_end) row[r] = args.row_end - 1;  // the last run is shorter: its last row again
      codes[r] = w.codes + row[r] * w.row_stride;
      scales[r] = codec.row_scales(w, row[r]);
    }
    __builtin_memset(sums, 0, used * sizeof(float));
    // 2. Whole steps.
    IntTokens tokens = {x, x_stride, args.tokens, sums};
    std::int64_t at = 0;
    for (std::int64_t step = 0; step < steps; ++step, at += 64 * V, tokens.x += kIntStepBytes<Codec, kBytes, V>) {
      IntStep<R, V * kIntsPerByte<Codec>> now;
      for (int r = 0; r < R; ++r) {
        I raw[V];
        for (int v = 0; v < V; ++v) {
          const std::int64_t here = at + 64 * v;
          prefetch(codes[r] + here + ahead + (here + rest >= row_bytes ? gap : 0));
          raw[v] = iload(codes[r] + here);
        }
        decode_step(codec, r, raw, Codec::fold_f32(Codec::template lane_bytes<V>(scales[r], at)), now);
      }
      add_int_step<kBytes>(now, tokens);
    }
    // 3. The rest of the row.
    while (at < row_bytes) {
      const std::int64_t bytes = row_bytes - at;
      const int v = step_vectors<Codec>((bytes + 63) / 64);
      if constexpr (V == 4) {
        if (v == 4) add_last_step<Codec, kBytes, R, 4>(codec, w, codes, scales, at, bytes, tokens);
      }
      if (v == 2) add_last_step<Codec, kBytes, R, 2>(codec, w, codes, scales, at, bytes, tokens);
      if (v == 1) add_last_step<Codec, kBytes, R, 1>(codec, w, codes, scales, at, bytes, tokens);
      tokens.x += (kBytes * v * kIntsPerByte<Codec> + 1) * 64;
      at += 64 * v;
    }
    // 4. Lanes to one sum.
    for (std::int64_t n = 0; n < args.tokens * R; n += 16) {
      alignas(64) float total[16];
      store(total, mul(sums_of_each(sums + n * 16), broadcast(final_scale)));
      for (std::int64_t j = n; j < n + 16 && j < args.tokens * R; ++j)
        args.out[j / R * args.out_stride + row[j % R] - args.row_begin] = total[j - n];
    }
  }
}

template <class Codec, int kBytes>
void int_few_packed(const MatmulArgs& args);  // matmul_int_packed.h

template <class Codec, int kBytes>
void int_few(const MatmulArgs& args) noexcept {
  if (args.weight->panel_bytes > 0) return int_few_packed<Codec, kBytes>(args);
  const std::int64_t x_stride = few_encoded_bytes<Codec, kBytes>(args.weight->cols);
  for (std::int64_t t = 0; t < args.tokens && !args.encoded; ++t)
    encode_few<Codec, kBytes>(args.x + t * args.x_stride, args.x_dtype, args.weight->cols, args.scratch + t * x_stride);
  int_few_rows<Codec, kBytes, kIntRows>(args, args.scratch, x_stride);
}

}  // namespace
}  // namespace motet::MOTET_TARGET
