// SPDX-License-Identifier: Apache-2.0
// The vector interface of vec.h on any processor: four 128-bit compiler vectors. Products and sums are rounded apart.
#pragma once

namespace motet::MOTET_TARGET {
namespace {

typedef float F4 __attribute__((vector_size(16)));
typedef std::uint32_t I4 __attribute__((vector_size(16)));
typedef std::int32_t S4 __attribute__((vector_size(16)));
typedef short H8 __attribute__((vector_size(16)));
struct F {
  F4 a, b, c, d;
};
struct I {
  I4 a, b, c, d;
};

inline constexpr int kFewSumsF32 = 2;                   // of 16 registers, four per vector
inline constexpr int kTilePanels = 1, kTileTokens = 2;  // 8 registers of sums, 4 of weights, 1 broadcast

MOTET_VEC F broadcast(float value) {
  const F4 one = {value, value, value, value};
  return {one, one, one, one};
}
MOTET_VEC F zero() { return broadcast(0.0f); }
MOTET_VEC F load(const float* p) {
  F v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MOTET_VEC void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
MOTET_VEC F load_part(const float* p, std::int64_t count) {
  float copy[16] = {};
  for (std::int64_t i = 0; i < 16 && i < count; ++i) copy[i] = p[i];
  return load(copy);
}
MOTET_VEC void store_part(float* p, F v, std::int64_t count) {
  float copy[16];
  store(copy, v);
  for (std::int64_t i = 0; i < 16 && i < count; ++i) p[i] = copy[i];
}
MOTET_VEC F fma(F x, F y, F z) { return {x.a * y.a + z.a, x.b * y.b + z.b, x.c * y.c + z.c, x.d * y.d + z.d}; }
MOTET_VEC F mul(F x, F y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
MOTET_VEC float sum(F v) {
  const F4 half = (v.a + v.c) + (v.b + v.d);
  return (half[0] + half[2]) + (half[1] + half[3]);
}

MOTET_VEC I iload(const void* p) {
  I v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MOTET_VEC I in_register(I v) { return v; }
MOTET_VEC void istore(void* p, I v) { __builtin_memcpy(p, &v, sizeof v); }
MOTET_VEC I iload_part(const void* p, std::int64_t bytes) {
  if (bytes >= 64) return iload(p);
  unsigned char copy[64] = {};
  __builtin_memcpy(copy, p, static_cast<std::size_t>(bytes));
  return iload(copy);
}
MOTET_VEC I ibroadcast(std::uint32_t value) {
  const I4 one = {value, value, value, value};
  return {one, one, one, one};
}
template <int kBits>
MOTET_VEC I shl(I v) {
  return {v.a << kBits, v.b << kBits, v.c << kBits, v.d << kBits};
}
template <int kBits>
MOTET_VEC I shr(I v) {
  return {v.a >> kBits, v.b >> kBits, v.c >> kBits, v.d >> kBits};
}
template <int kBits>
MOTET_VEC I sar(I v) {
  return {(I4)((S4)v.a >> kBits), (I4)((S4)v.b >> kBits), (I4)((S4)v.c >> kBits), (I4)((S4)v.d >> kBits)};
}
MOTET_VEC I iand(I x, I y) { return {x.a & y.a, x.b & y.b, x.c & y.c, x.d & y.d}; }
MOTET_VEC I ior(I x, I y) { return {x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d}; }
MOTET_VEC I at_least(I x, I y) {
  return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b, x.c > y.c ? x.c : y.c, x.d > y.d ? x.d : y.d};
}
MOTET_VEC F as_float(I v) { return {(F4)v.a, (F4)v.b, (F4)v.c, (F4)v.d}; }
MOTET_VEC I as_dwords(F v) { return {(I4)v.a, (I4)v.b, (I4)v.c, (I4)v.d}; }

struct Table16 {
  const float* entries;
};
MOTET_VEC Table16 table16(const float* entries) { return {entries}; }
MOTET_VEC F4 lookup4(const Table16& t, I4 index) {
  return F4{t.entries[index[0] & 15], t.entries[index[1] & 15], t.entries[index[2] & 15], t.entries[index[3] & 15]};
}
MOTET_VEC F lookup(const Table16& t, I index) {
  return {lookup4(t, index.a), lookup4(t, index.b), lookup4(t, index.c), lookup4(t, index.d)};
}

/// Exact: the code moved up and multiplied by 2^112, subnormals included; infinity and NaN get the full exponent.
MOTET_VEC F f16_low(I v) {
  const I magnitude = iand(v, ibroadcast(0x7FFFu)), sign = shl<16>(iand(v, ibroadcast(0x8000u)));
  const I value = as_dwords(mul(as_float(shl<13>(magnitude)), broadcast(0x1p112f)));
  const I limit = ibroadcast(0x7BFFu), full = ibroadcast(0x7F800000u);
  const I special = {(I4)(magnitude.a > limit.a), (I4)(magnitude.b > limit.b), (I4)(magnitude.c > limit.c),
                     (I4)(magnitude.d > limit.d)};
  return as_float(ior(ior(value, sign), iand(special, full)));
}

template <int kEvery>
MOTET_VEC I widen1(const std::byte* p, std::int64_t count) {
  std::uint32_t lanes[16] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i] = static_cast<std::uint32_t>(p[i * kEvery]);
  return iload(lanes);
}
template <int kEvery>
MOTET_VEC I widen2(const std::byte* p, std::int64_t count) {
  std::uint32_t lanes[16] = {};
  for (std::int64_t i = 0; i < count; ++i) __builtin_memcpy(&lanes[i], p + i * kEvery * 2, 2);  // little-endian
  return iload(lanes);
}

/// Lane r of result i is lane i of source r.
MOTET_VEC void transpose(I* v) {
  std::uint32_t in[16][16], out[16][16];
  for (int r = 0; r < 16; ++r) istore(in[r], v[r]);
  for (int r = 0; r < 16; ++r)
    for (int i = 0; i < 16; ++i) out[i][r] = in[r][i];
  for (int i = 0; i < 16; ++i) v[i] = iload(out[i]);
}

MOTET_VEC F e8m0_x4(const std::byte* p) {
  I4 v[4];
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t code = static_cast<std::uint32_t>(p[i]), bits = code == 0 ? 0x00400000u : code << 23;
    v[i] = I4{bits, bits, bits, bits};
  }
  return as_float({v[0], v[1], v[2], v[3]});
}
MOTET_VEC F e4m3_x2(const std::byte* p) {
  std::uint32_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = static_cast<std::uint32_t>(p[i / 2]) << 20;
  return mul(as_float(iload(bits)), broadcast(0x1p120f));
}

MOTET_VEC I izero() { return ibroadcast(0); }
MOTET_VEC I iadd(I x, I y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
MOTET_VEC I isub(I x, I y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
MOTET_VEC I ixor(I x, I y) { return {x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d}; }
MOTET_VEC F to_float(I v) {
  return {__builtin_convertvector((S4)v.a, F4), __builtin_convertvector((S4)v.b, F4), __builtin_convertvector((S4)v.c, F4),
          __builtin_convertvector((S4)v.d, F4)};
}
/// 1.5 x 2^23 makes the last bit of a sum the ones: the sum is rounded to the integer, which its low bits then hold.
MOTET_VEC I to_int(F v) {
  const F4 shift = {0x1.8p23f, 0x1.8p23f, 0x1.8p23f, 0x1.8p23f};
  return isub(as_dwords({v.a + shift, v.b + shift, v.c + shift, v.d + shift}), as_dwords(broadcast(0x1.8p23f)));
}
MOTET_VEC F divide(F x, F y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }

template <class Element, int kCount>
struct Lanes {
  Element at[kCount];
};
template <class Element>
MOTET_VEC auto lanes_of(I v) {
  return __builtin_bit_cast(Lanes<Element, 64 / sizeof(Element)>, v);
}
inline constexpr int kLargestDotted = 127;          // magnitude of signed bytes in dots()
inline constexpr int kDotRun = 1;                   // vectors that dots() likes to take together
inline constexpr int kIntRows = 1, kIntTokens = 1;  // whose sums `few` of the integer dots keeps in registers
// As in vec_avx512.h: 1: 3.4 / 4.0, 2: 5.6 / 7.7; one is what callers expect.
inline constexpr int kMaxFewInt16 = 1, kMaxFewInt8 = 1;
MOTET_VEC I4 products2(I4 x, I4 y) { return (I4)__builtin_ia32_pmaddwd128((H8)x, (H8)y); }  // every x86-64 has it
MOTET_VEC I dot2(I sums, I x, I y) {
  return iadd(sums, {products2(x.a, y.a), products2(x.b, y.b), products2(x.c, y.c), products2(x.d, y.d)});
}
struct NibbleTable {
  const std::int8_t* entries;
};
MOTET_VEC NibbleTable nibble_table(const std::int8_t* entries) { return {entries}; }
MOTET_VEC I nibble_lookup(const NibbleTable& table, I index) {
  auto bytes = lanes_of<std::int8_t>(index);
  for (int i = 0; i < 64; ++i) bytes.at[i] = table.entries[bytes.at[i] & 15];
  return __builtin_bit_cast(I, bytes);
}
MOTET_VEC I odd_words(I v) { return {(I4)((H8)v.a >> 8), (I4)((H8)v.b >> 8), (I4)((H8)v.c >> 8), (I4)((H8)v.d >> 8)}; }
MOTET_VEC I even_words(I v) { return odd_words({(I4)((H8)v.a << 8), (I4)((H8)v.b << 8), (I4)((H8)v.c << 8), (I4)((H8)v.d << 8)}); }
MOTET_VEC I dot4(I sums, I x, I weights) {
  const I low = ibroadcast(0x00FF00FFu);
  return dot2(dot2(sums, iand(x, low), even_words(weights)), iand(shr<8>(x), low), odd_words(weights));
}
template <int N>
MOTET_VEC I dots(I sums, const I* x, const I* weights) {
  for (int i = 0; i < N; ++i) sums = dot4(sums, x[i], weights[i]);
  return sums;
}

MOTET_VEC I pack_words(I a, I b) {
  const auto low = lanes_of<std::int32_t>(a), high = lanes_of<std::int32_t>(b);
  Lanes<std::int16_t, 32> out;
  for (int i = 0; i < 16; ++i) {
    out.at[i] = static_cast<std::int16_t>(low.at[i]);
    out.at[16 + i] = static_cast<std::int16_t>(high.at[i]);
  }
  return __builtin_bit_cast(I, out);
}
MOTET_VEC I pack_bytes(I a, I b) {
  const auto low = lanes_of<std::uint16_t>(a), high = lanes_of<std::uint16_t>(b);
  Lanes<std::uint8_t, 64> out;
  for (int i = 0; i < 32; ++i) {
    out.at[i] = static_cast<std::uint8_t>(low.at[i]);
    out.at[32 + i] = static_cast<std::uint8_t>(high.at[i]);
  }
  return __builtin_bit_cast(I, out);
}
MOTET_VEC I4 every_second(I4 x, I4 y, int first) { return I4{x[first], x[first + 2], y[first], y[first + 2]}; }
MOTET_VEC I even_dwords(I x, I y) {
  return {every_second(x.a, y.a, 0), every_second(x.b, y.b, 0), every_second(x.c, y.c, 0), every_second(x.d, y.d, 0)};
}
MOTET_VEC I odd_dwords(I x, I y) {
  return {every_second(x.a, y.a, 1), every_second(x.b, y.b, 1), every_second(x.c, y.c, 1), every_second(x.d, y.d, 1)};
}
MOTET_VEC I even_quads(I x, I y) { return {x.a, x.c, y.a, y.c}; }
MOTET_VEC I odd_quads(I x, I y) { return {x.b, x.d, y.b, y.d}; }
/// Word i of each quad (128 bits): its word order[i].
MOTET_VEC I order_words(I v, const std::uint8_t* order) {
  const auto words = lanes_of<std::uint16_t>(v);
  auto out = words;
  for (int i = 0; i < 32; ++i) out.at[i] = words.at[i / 8 * 8 + order[i % 8]];
  return __builtin_bit_cast(I, out);
}
/// Dword l: byte index[l] of the kBytes (at most 16) at p.
template <int kBytes>
MOTET_VEC I byte_lanes(const std::byte* p, const std::uint8_t* index) {
  Lanes<std::uint32_t, 16> out;
  for (int l = 0; l < 16; ++l) out.at[l] = static_cast<std::uint32_t>(p[index[l]]);
  return __builtin_bit_cast(I, out);
}

MOTET_VEC void prefetch(const std::byte* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace
}  // namespace motet::MOTET_TARGET
