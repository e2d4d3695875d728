// SPDX-License-Identifier: Apache-2.0
// The vector interface of vec.h on AVX-512 F, BW, DQ, VL; with BF16 and VBMI also the bf16 dot.
#pragma once

#include <immintrin.h>

// Zero-masked forms with a full mask cost nothing; the plain ones start from an "undefined" value that g++ 12 warns about.

namespace motet::MOTET_TARGET {
namespace {

using F = __m512;
using I = __m512i;

inline constexpr int kFewSumsF32 = 32, kFewSumsBf16Dot = 16;  // measured: the shorter chains of the dot prefer fewer rows to spills
inline constexpr int kTilePanels = 2, kTileTokens = 12;       // 24 sums: >= 12 hide the latency of 6 cycles at two per cycle

MOTET_VEC F zero() { return _mm512_setzero_ps(); }
MOTET_VEC F broadcast(float value) { return _mm512_set1_ps(value); }
MOTET_VEC F load(const float* p) { return _mm512_loadu_ps(p); }
MOTET_VEC void store(float* p, F v) { _mm512_storeu_ps(p, v); }
MOTET_VEC __mmask16 first_lanes(std::int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xFFFFu : (1u << count) - 1u); }
MOTET_VEC F load_part(const float* p, std::int64_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), p); }
MOTET_VEC void store_part(float* p, F v, std::int64_t count) { _mm512_mask_storeu_ps(p, first_lanes(count), v); }
MOTET_VEC F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
MOTET_VEC F mul(F a, F b) { return _mm512_mul_ps(a, b); }
MOTET_VEC float sum(F v) {
  const __m256 half = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xFF, v, 0), _mm512_maskz_extractf32x8_ps(0xFF, v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

MOTET_VEC I iload(const void* p) { return _mm512_loadu_si512(p); }
/// Loads once: without this g++ reads memory again for every shift, and rows that straddle cache lines pay twice each time.
MOTET_VEC I in_register(I v) {
  asm("" : "+v"(v));
  return v;
}
MOTET_VEC void istore(void* p, I v) { _mm512_storeu_si512(p, v); }
MOTET_VEC I iload_part(const void* p, std::int64_t bytes) {
  return bytes >= 64 ? iload(p) : _mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1u, p);  // bytes past the count are not touched
}
MOTET_VEC I ibroadcast(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
template <int kBits>
MOTET_VEC I shl(I v) {
  return _mm512_maskz_slli_epi32(0xFFFF, v, kBits);
}
template <int kBits>
MOTET_VEC I shr(I v) {
  return _mm512_maskz_srli_epi32(0xFFFF, v, kBits);
}
template <int kBits>
MOTET_VEC I sar(I v) {
  return _mm512_maskz_srai_epi32(0xFFFF, v, kBits);
}
MOTET_VEC I iand(I a, I b) { return _mm512_and_si512(a, b); }
MOTET_VEC I ior(I a, I b) { return _mm512_or_si512(a, b); }
MOTET_VEC I at_least(I a, I b) { return _mm512_maskz_max_epu32(0xFFFF, a, b); }
MOTET_VEC F as_float(I v) { return _mm512_castsi512_ps(v); }
MOTET_VEC I as_dwords(F v) { return _mm512_castps_si512(v); }

using Table16 = F;
MOTET_VEC Table16 table16(const float* entries) { return load(entries); }
MOTET_VEC F lookup(Table16 table, I index) { return _mm512_maskz_permutexvar_ps(0xFFFF, index, table); }

MOTET_VEC F f16_low(I v) { return _mm512_maskz_cvtph_ps(0xFFFF, _mm512_maskz_cvtepi32_epi16(0xFFFF, v)); }

/// Elements 0, kEvery, 2 kEvery ... of 1, 2 or 4 bytes from p, `count` (at most 16) of them, to the low end of each dword.
template <int kEvery>
MOTET_VEC I widen1(const std::byte* p, std::int64_t count) {
  if (kEvery == 1 && count == 16) return _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i bytes = _mm256_maskz_loadu_epi8(static_cast<__mmask32>((std::uint64_t{1} << ((count - 1) * kEvery + 1)) - 1u), p);
  if constexpr (kEvery == 1) return _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm256_castsi256_si128(bytes));
  return _mm512_maskz_and_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, bytes), ibroadcast(0xFFu));
}
template <int kEvery>
MOTET_VEC I widen2(const std::byte* p, std::int64_t count) {
  if (kEvery == 1 && count == 16)
    return _mm512_maskz_cvtepu16_epi32(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const std::uint32_t mask = static_cast<std::uint32_t>((std::uint64_t{1} << ((count - 1) * kEvery + 1)) - 1u);
  if constexpr (kEvery == 1) return _mm512_maskz_cvtepu16_epi32(0xFFFF, _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), p));
  return iand(_mm512_maskz_loadu_epi16(mask, p), ibroadcast(0xFFFFu));
}

/// Lane r of result i is lane i of source r.
MOTET_VEC void transpose(I* v) {
  I t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_maskz_unpacklo_epi32(0xFFFF, v[i], v[i + 1]);
    t[i + 1] = _mm512_maskz_unpackhi_epi32(0xFFFF, v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_maskz_unpacklo_epi64(0xFF, t[i], t[i + 2]);
    v[i + 1] = _mm512_maskz_unpackhi_epi64(0xFF, t[i], t[i + 2]);
    v[i + 2] = _mm512_maskz_unpacklo_epi64(0xFF, t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_maskz_unpackhi_epi64(0xFF, t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // v[4 q + i]: dwords i, 4 + i, 8 + i, 12 + i of rows 4 q .. 4 q + 3
    const I low01 = _mm512_maskz_shuffle_i32x4(0xFFFF, v[i], v[4 + i], 0x44),
            high01 = _mm512_maskz_shuffle_i32x4(0xFFFF, v[i], v[4 + i], 0xEE);
    const I low23 = _mm512_maskz_shuffle_i32x4(0xFFFF, v[8 + i], v[12 + i], 0x44);
    const I high23 = _mm512_maskz_shuffle_i32x4(0xFFFF, v[8 + i], v[12 + i], 0xEE);
    t[i] = _mm512_maskz_shuffle_i32x4(0xFFFF, low01, low23, 0x88);
    t[4 + i] = _mm512_maskz_shuffle_i32x4(0xFFFF, low01, low23, 0xDD);
    t[8 + i] = _mm512_maskz_shuffle_i32x4(0xFFFF, high01, high23, 0x88);
    t[12 + i] = _mm512_maskz_shuffle_i32x4(0xFFFF, high01, high23, 0xDD);
  }
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

#if MOTET_HAS_TILES
/// 64 bytes of 16 rows, transposed. Quads are put together by loads: the processors with tiles have one port for 512-bit shuffles.
MOTET_VEC void load_transposed(const std::byte* const* rows, std::int64_t offset, I* columns) {
  for (int q = 0; q < 4; ++q) {  // v[i]: quad q of rows i, 4 + i, 8 + i, 12 + i
    I v[4];
    for (int i = 0; i < 4; ++i) {
      const auto quad = [&](int r) __attribute__((always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i + 4 * r] + offset + 16 * q));
      };
      v[i] = _mm512_zextsi128_si512(quad(0));
      v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x00F0, quad(1));
      v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x0F00, quad(2));
      v[i] = _mm512_mask_broadcast_i32x4(v[i], 0xF000, quad(3));
    }
    const I low01 = _mm512_maskz_unpacklo_epi32(0xFFFF, v[0], v[1]), high01 = _mm512_maskz_unpackhi_epi32(0xFFFF, v[0], v[1]);
    const I low23 = _mm512_maskz_unpacklo_epi32(0xFFFF, v[2], v[3]), high23 = _mm512_maskz_unpackhi_epi32(0xFFFF, v[2], v[3]);
    columns[4 * q] = _mm512_maskz_unpacklo_epi64(0xFF, low01, low23);
    columns[4 * q + 1] = _mm512_maskz_unpackhi_epi64(0xFF, low01, low23);
    columns[4 * q + 2] = _mm512_maskz_unpacklo_epi64(0xFF, high01, high23);
    columns[4 * q + 3] = _mm512_maskz_unpackhi_epi64(0xFF, high01, high23);
  }
}
#endif

MOTET_VEC F e8m0_x4(const std::byte* p) {
  int four;
  __builtin_memcpy(&four, p, 4);
  const I turn = _mm512_set_epi32(31, 31, 31, 31, 7, 7, 7, 7, 15, 15, 15, 15, 23, 23, 23, 23);  // byte j / 4 to bits 23..30
  const I bits = iand(_mm512_maskz_rolv_epi32(0xFFFF, _mm512_set1_epi32(four), turn), ibroadcast(0x7F800000u));
  return as_float(at_least(bits, ibroadcast(0x00400000u)));  // byte 0 is 2^-127, a subnormal
}
MOTET_VEC F e4m3_x2(const std::byte* p) {
  long long eight;
  __builtin_memcpy(&eight, p, 8);
  const I place = _mm512_set_epi8(-1, 7, -1, -1, -1, 7, -1, -1, -1, 6, -1, -1, -1, 6, -1, -1,  // byte j / 2 to bits 16..23
                                  -1, 5, -1, -1, -1, 5, -1, -1, -1, 4, -1, -1, -1, 4, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1, 2,
                                  -1, -1, -1, 2, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 0, -1, -1, -1, 0, -1, -1);
  return mul(as_float(shl<4>(_mm512_shuffle_epi8(_mm512_set1_epi64(eight), place))), broadcast(0x1p120f));
}

MOTET_VEC void prefetch(const std::byte* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

MOTET_VEC I izero() { return _mm512_setzero_si512(); }
MOTET_VEC I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
MOTET_VEC I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
MOTET_VEC I ixor(I a, I b) { return _mm512_xor_si512(a, b); }
MOTET_VEC F to_float(I v) { return _mm512_maskz_cvtepi32_ps(0xFFFF, v); }
MOTET_VEC I to_int(F v) { return _mm512_maskz_cvtps_epi32(0xFFFF, v); }
MOTET_VEC F divide(F a, F b) { return _mm512_div_ps(a, b); }

inline constexpr int kLargestDotted = 127;          // magnitude of signed bytes in dots()
inline constexpr int kDotRun = 1;                   // vectors that dots() likes to take together
inline constexpr int kIntRows = 4, kIntTokens = 6;  // whose sums `few` of the integer dots keeps in registers
// Tokens up to which `few` of the integer dots is not slower than `many` (GFLOP/s of one core, MXFP4, K = 2880, few / many; Emerald
// Rapids class, December 2026): int16 12: 211 / 173, 16: 217 / 198, 24: 208 / 231; int8 16: 340 / 280, 24: 329 / 331. NVFP4: both
// cross at 16.
inline constexpr int kMaxFewInt16 = 16, kMaxFewInt8 = 16;
// As text, not intrinsics: g++ 12 copies and spills the sums of a tile, clang 19 splits vpdpwssd into a product and an addition.
MOTET_VEC I dot4(I sums, I x, I weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "vm"(weights));
  return sums;
}
template <int N>
MOTET_VEC I dots(I sums, const I* x, const I* weights) {
  for (int i = 0; i < N; ++i) sums = dot4(sums, x[i], weights[i]);
  return sums;
}
MOTET_VEC I dot2(I sums, I a, I b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "vm"(b));
  return sums;
}

using NibbleTable = I;
MOTET_VEC NibbleTable nibble_table(const std::int8_t* entries) {
  return _mm512_maskz_broadcast_i32x4(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}
#if defined(__AVX512VBMI__)  // vpermb looks at six bits, and the table is there four times
MOTET_VEC I nibble_lookup(NibbleTable table, I index) { return _mm512_maskz_permutexvar_epi8(~__mmask64{0}, index, table); }
#else
MOTET_VEC I nibble_lookup(NibbleTable table, I index) {
  return _mm512_shuffle_epi8(table, _mm512_and_si512(index, _mm512_set1_epi8(15)));
}
#endif
MOTET_VEC I even_words(I bytes) { return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8); }
MOTET_VEC I odd_words(I bytes) { return _mm512_srai_epi16(bytes, 8); }

MOTET_VEC I in_quad_order(I v) {  // quads of a and b alternate by halves
  return _mm512_maskz_permutexvar_epi64(0xFF, _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
}
MOTET_VEC I pack_words(I a, I b) { return in_quad_order(_mm512_packs_epi32(a, b)); }
MOTET_VEC I pack_bytes(I a, I b) { return in_quad_order(_mm512_packus_epi16(a, b)); }
MOTET_VEC I even_dwords(I a, I b) {
  return _mm512_castps_si512(_mm512_maskz_shuffle_ps(0xFFFF, _mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
MOTET_VEC I odd_dwords(I a, I b) {
  return _mm512_castps_si512(_mm512_maskz_shuffle_ps(0xFFFF, _mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xDD));
}
MOTET_VEC I even_quads(I a, I b) { return _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, 0x88); }
MOTET_VEC I odd_quads(I a, I b) { return _mm512_maskz_shuffle_i32x4(0xFFFF, a, b, 0xDD); }
/// Word i of each quad (128 bits): its word order[i].
MOTET_VEC I order_words(I v, const std::uint8_t* order) {
  alignas(16) std::uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>(2 * order[i / 2] + i % 2);
  return _mm512_shuffle_epi8(v, _mm512_maskz_broadcast_i32x4(0xFFFF, _mm_load_si128(reinterpret_cast<const __m128i*>(bytes))));
}
/// Dword l: byte index[l] of the kBytes (at most 16) at p.
template <int kBytes>
MOTET_VEC I byte_lanes(const std::byte* p, const std::uint8_t* index) {
  __m128i bytes = _mm_setzero_si128();
  __builtin_memcpy(&bytes, p, kBytes);
  return _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(index))));
}

#if MOTET_HAS_BF16_DOT
MOTET_VEC F dot(F sums, I weights, I x) { return _mm512_dpbf16_ps(sums, (__m512bh)weights, (__m512bh)x); }

/// 32 values as bf16: rounded to nearest even, then what that leaves, rounded too. Finite values whose parts would be infinite or add
/// up to infinity are the largest that do not, 0x1.FFFEp127. Subnormal parts are zero; NaN and infinity stay what they are.
struct SplitBf16 {
  I high, low;
};
MOTET_VEC F within(F v, float limit) {  // the second operand is what NaN gives
  return _mm512_maskz_min_ps(0xFFFF, broadcast(limit), _mm512_maskz_max_ps(0xFFFF, broadcast(-limit), v));
}
/// v less the 16 bf16.
MOTET_VEC F without_bf16(F v, __m256i part) {
  return _mm512_sub_ps(v, as_float(_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, part), 16)));
}
MOTET_VEC F finite_within(F v, float limit) {
  constexpr int kInfinity = 0x08 | 0x10;
  return _mm512_mask_mov_ps(within(v, limit), _mm512_fpclass_ps_mask(v, kInfinity), v);
}
MOTET_VEC SplitBf16 split_bf16(F first, F second) {
  first = finite_within(first, 0x1.FFFEp127f);
  second = finite_within(second, 0x1.FFFEp127f);
  const I high = (I)_mm512_cvtne2ps_pbh(within(second, 0x1.FEp127f), within(first, 0x1.FEp127f));
  return {high, (I)_mm512_cvtne2ps_pbh(without_bf16(second, _mm512_maskz_extracti64x4_epi64(0xFF, high, 1)),
                                       without_bf16(first, _mm512_castsi512_si256(high)))};
}

/// 16 bf16 entries, by the low four bits of each word; the fifth bit may be anything.
using PairTable = I;
MOTET_VEC PairTable pair_table(const std::uint16_t* entries) {
  return _mm512_maskz_broadcast_i64x4(0xFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(entries)));
}
MOTET_VEC I pair_lookup(PairTable table, I index) { return _mm512_maskz_permutexvar_epi16(~__mmask32{0}, index, table); }

/// Nibbles 2 i and 2 i + 1 of each dword to the low ends of its two words (upper bits of a word hold anything).
template <int kPair>
MOTET_VEC I nibble_pair(I v) {
  constexpr long long low = 8 * kPair, high = 32 + 8 * kPair;  // bit positions inside each quadword
  constexpr long long control = low | ((low + 4) << 16) | (high << 32) | ((high + 4) << 48);
  return _mm512_maskz_multishift_epi64_epi8(~__mmask64{0}, _mm512_set1_epi64(control), v);
}
/// Each word less `amount`, not below zero.
MOTET_VEC I lower_words(I v, I amount) { return _mm512_subs_epu16(v, amount); }
/// `limit` less each dword, not below zero (words; both below 2^16).
MOTET_VEC I at_least_zero(std::uint32_t limit, I v) { return _mm512_subs_epu16(ibroadcast(limit), v); }
MOTET_VEC I swap_middle_bytes(I v) {
  return _mm512_shuffle_epi8(
      v, _mm512_maskz_broadcast_i32x4(0xFFFF, _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0)));
}

/// A byte table of 128 entries, by the low seven bits of each byte.
struct ByteTable {
  I low, high;
};
MOTET_VEC ByteTable byte_table(const std::uint8_t* entries) { return {iload(entries), iload(entries + 64)}; }
MOTET_VEC I byte_lookup(const ByteTable& table, I index) { return _mm512_permutex2var_epi8(table.low, index, table.high); }
/// (a & mask) | (b & ~mask).
MOTET_VEC I choose(I mask, I a, I b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xCA); }
#endif

}  // namespace
}  // namespace motet::MOTET_TARGET
