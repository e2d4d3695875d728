// SPDX-License-Identifier: Apache-2.0
// The vector interface of vec.h on AVX2, FMA and F16C: two 256-bit halves.
#pragma once

#include <immintrin.h>

namespace motet::MOTET_TARGET {
namespace {

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};

inline constexpr int kFewSumsF32 = 8;                   // of 16 registers, two per vector
inline constexpr int kTilePanels = 1, kTileTokens = 6;  // 12 registers of sums, 2 of weights, 1 broadcast

MOTET_VEC F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MOTET_VEC F broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
MOTET_VEC F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
MOTET_VEC void store(float* p, F v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
MOTET_VEC __m256i first_lanes(std::int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MOTET_VEC F load_part(const float* p, std::int64_t count) {
  return {_mm256_maskload_ps(p, first_lanes(count)), _mm256_maskload_ps(p + 8, first_lanes(count - 8))};
}
MOTET_VEC void store_part(float* p, F v, std::int64_t count) {
  _mm256_maskstore_ps(p, first_lanes(count), v.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(count - 8), v.hi);
}
MOTET_VEC F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
MOTET_VEC F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
MOTET_VEC float sum(F v) {
  const __m256 half = _mm256_add_ps(v.lo, v.hi);
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

MOTET_VEC I iload(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
MOTET_VEC I in_register(I v) { return v; }
MOTET_VEC void istore(void* p, I v) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, v.lo);
  _mm256_storeu_si256(q + 1, v.hi);
}
MOTET_VEC I iload_part(const void* p, std::int64_t bytes) {
  if (bytes >= 64) return iload(p);
  alignas(64) unsigned char copy[64] = {};
  __builtin_memcpy(copy, p, static_cast<std::size_t>(bytes));
  return iload(copy);
}
MOTET_VEC I ibroadcast(std::uint32_t value) {
  return {_mm256_set1_epi32(static_cast<int>(value)), _mm256_set1_epi32(static_cast<int>(value))};
}
template <int kBits>
MOTET_VEC I shl(I v) {
  return {_mm256_slli_epi32(v.lo, kBits), _mm256_slli_epi32(v.hi, kBits)};
}
template <int kBits>
MOTET_VEC I shr(I v) {
  return {_mm256_srli_epi32(v.lo, kBits), _mm256_srli_epi32(v.hi, kBits)};
}
template <int kBits>
MOTET_VEC I sar(I v) {
  return {_mm256_srai_epi32(v.lo, kBits), _mm256_srai_epi32(v.hi, kBits)};
}
MOTET_VEC I iand(I a, I b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
MOTET_VEC I ior(I a, I b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
MOTET_VEC I at_least(I a, I b) { return {_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)}; }
MOTET_VEC F as_float(I v) { return {_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)}; }
MOTET_VEC I as_dwords(F v) { return {_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)}; }

struct Table16 {
  __m256 low, high;
};  // entries 0..7, 8..15
MOTET_VEC Table16 table16(const float* entries) { return {_mm256_loadu_ps(entries), _mm256_loadu_ps(entries + 8)}; }
MOTET_VEC __m256 lookup8(const Table16& table, __m256i index) {  // bit 3 becomes the sign bit that the blend looks at
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index), _mm256_permutevar8x32_ps(table.high, index),
                          _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
MOTET_VEC F lookup(const Table16& table, I index) { return {lookup8(table, index.lo), lookup8(table, index.hi)}; }

MOTET_VEC F f16_low(I v) {
  const I low = iand(v, ibroadcast(0xFFFFu));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low.lo, low.hi), 0xD8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(words)), _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
}

template <int kEvery>
MOTET_VEC I widen1(const std::byte* p, std::int64_t count) {
  std::uint32_t lanes[16] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = static_cast<std::uint32_t>(p[i * kEvery]);
  return iload(lanes);
}
template <int kEvery>
MOTET_VEC I widen2(const std::byte* p, std::int64_t count) {
  if (kEvery == 1 && count == 16) {
    const auto* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
  }
  if (kEvery == 2 && count == 16) {  // 62 bytes: the last dword ends past the last element
    const I whole = iload_part(p, 62);
    return iand(whole, ibroadcast(0xFFFFu));
  }
  std::uint32_t lanes[16] = {};
  for (std::int64_t i = 0; i < count; ++i) __builtin_memcpy(&lanes[i], p + i * kEvery * 2, 2);
  return iload(lanes);
}

MOTET_VEC void transpose8(const __m256i* in, __m256i* out) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
    out[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
  }
}
/// Lane r of result i is lane i of source r.
MOTET_VEC void transpose(I* v) {
  __m256i in[8], out[8];
  I result[16];
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < 8; ++r) in[r] = v[8 * half + r].lo;
    transpose8(in, out);
    for (int i = 0; i < 8; ++i) (half == 0 ? result[i].lo : result[i].hi) = out[i];
    for (int r = 0; r < 8; ++r) in[r] = v[8 * half + r].hi;
    transpose8(in, out);
    for (int i = 0; i < 8; ++i) (half == 0 ? result[8 + i].lo : result[8 + i].hi) = out[i];
  }
  for (int i = 0; i < 16; ++i) v[i] = result[i];
}

MOTET_VEC F e8m0_x4(const std::byte* p) {
  int four;
  __builtin_memcpy(&four, p, 4);
  const __m256i all = _mm256_set1_epi32(four), byte = _mm256_set1_epi32(0xFF);
  const I codes = {_mm256_and_si256(_mm256_srlv_epi32(all, _mm256_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8)), byte),
                   _mm256_and_si256(_mm256_srlv_epi32(all, _mm256_setr_epi32(16, 16, 16, 16, 24, 24, 24, 24)), byte)};
  return as_float(at_least(shl<23>(codes), ibroadcast(0x00400000u)));  // byte 0 is 2^-127, a subnormal
}
MOTET_VEC F e4m3_x2(const std::byte* p) {
  int four[2];
  __builtin_memcpy(four, p, 8);
  const __m256i byte = _mm256_set1_epi32(0xFF), turn = _mm256_setr_epi32(0, 0, 8, 8, 16, 16, 24, 24);
  const I codes = {_mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(four[0]), turn), byte),
                   _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(four[1]), turn), byte)};
  return mul(as_float(shl<20>(codes)), broadcast(0x1p120f));
}

MOTET_VEC I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
MOTET_VEC I iadd(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
MOTET_VEC I isub(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
MOTET_VEC I ixor(I a, I b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
MOTET_VEC F to_float(I v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
MOTET_VEC I to_int(F v) { return {_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)}; }
MOTET_VEC F divide(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }

inline constexpr int kLargestDotted = 16;           // magnitude of signed bytes in dots(): 4 x 2 x 255 x 16 < 2^15
inline constexpr int kDotRun = 4;                   // vectors that dots() likes to take together
inline constexpr int kIntRows = 2, kIntTokens = 2;  // whose sums `few` of the integer dots keeps in registers
// As in vec_avx512.h: int16 2: 46 / 34, 4: 58 / 59, 6: 63 / 72; int8 6: 103 / 83, 8: 109 / 98, 12: 113 / 119.
inline constexpr int kMaxFewInt16 = 4, kMaxFewInt8 = 8;
/// Keeps the dots of a tile in their order: g++ 12 computes all products first and spills the sums.
MOTET_VEC I in_order(I v) {
  asm volatile("" : "+x"(v.lo), "+x"(v.hi));
  return v;
}
/// sums + x * weights for N vectors, up to four of them added in 16 bits.
template <int N>
MOTET_VEC __m256i dots_half(__m256i sums, const __m256i* x, const __m256i* weights) {
  for (int i = 0; i < N; i += 4) {
    __m256i words = _mm256_maddubs_epi16(x[i], weights[i]);
    for (int j = i + 1; j < i + 4 && j < N; ++j) words = _mm256_add_epi16(words, _mm256_maddubs_epi16(x[j], weights[j]));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
  return sums;
}
template <int N>
MOTET_VEC I dots(I sums, const I* x, const I* weights) {
  __m256i xs[2][N], ws[2][N];
  for (int i = 0; i < N; ++i) xs[0][i] = x[i].lo, xs[1][i] = x[i].hi, ws[0][i] = weights[i].lo, ws[1][i] = weights[i].hi;
  return in_order({dots_half<N>(sums.lo, xs[0], ws[0]), dots_half<N>(sums.hi, xs[1], ws[1])});
}
MOTET_VEC I dot4(I sums, I x, I weights) { return dots<1>(sums, &x, &weights); }
MOTET_VEC I dot2(I sums, I a, I b) { return in_order(iadd(sums, {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)})); }

using NibbleTable = __m256i;
MOTET_VEC NibbleTable nibble_table(const std::int8_t* entries) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}
MOTET_VEC I nibble_lookup(NibbleTable table, I index) {
  const I low = iand(index, ibroadcast(0x0F0F0F0Fu));
  return {_mm256_shuffle_epi8(table, low.lo), _mm256_shuffle_epi8(table, low.hi)};
}
MOTET_VEC I odd_words(I bytes) { return {_mm256_srai_epi16(bytes.lo, 8), _mm256_srai_epi16(bytes.hi, 8)}; }
MOTET_VEC I even_words(I bytes) { return odd_words({_mm256_slli_epi16(bytes.lo, 8), _mm256_slli_epi16(bytes.hi, 8)}); }

MOTET_VEC I pack_words(I a, I b) {
  return {_mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8),
          _mm256_permute4x64_epi64(_mm256_packs_epi32(b.lo, b.hi), 0xD8)};
}
MOTET_VEC I pack_bytes(I a, I b) {
  return {_mm256_permute4x64_epi64(_mm256_packus_epi16(a.lo, a.hi), 0xD8),
          _mm256_permute4x64_epi64(_mm256_packus_epi16(b.lo, b.hi), 0xD8)};
}
template <int kControl>
MOTET_VEC I shuffle_dwords(I a, I b) {
  return {_mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(b.lo), kControl)),
          _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a.hi), _mm256_castsi256_ps(b.hi), kControl))};
}
MOTET_VEC I even_dwords(I a, I b) { return shuffle_dwords<0x88>(a, b); }
MOTET_VEC I odd_dwords(I a, I b) { return shuffle_dwords<0xDD>(a, b); }
MOTET_VEC I even_quads(I a, I b) {
  return {_mm256_permute2x128_si256(a.lo, a.hi, 0x20), _mm256_permute2x128_si256(b.lo, b.hi, 0x20)};
}
MOTET_VEC I odd_quads(I a, I b) {
  return {_mm256_permute2x128_si256(a.lo, a.hi, 0x31), _mm256_permute2x128_si256(b.lo, b.hi, 0x31)};
}
/// Word i of each quad (128 bits): its word order[i].
MOTET_VEC I order_words(I v, const std::uint8_t* order) {
  alignas(16) std::uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(2 * order[i / 2] + i % 2);
  const __m256i table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  return {_mm256_shuffle_epi8(v.lo, table), _mm256_shuffle_epi8(v.hi, table)};
}
/// Dword l: byte index[l] of the kBytes (at most 16) at p.
template <int kBytes>
MOTET_VEC I byte_lanes(const std::byte* p, const std::uint8_t* index) {
  __m128i bytes = _mm_setzero_si128();
  __builtin_memcpy(&bytes, p, kBytes);
  bytes = _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(index)));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}

MOTET_VEC void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace motet::MOTET_TARGET
