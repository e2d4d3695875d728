// SPDX-License-Identifier: Apache-2.0
// Activations as integers: x = q * s, one fp32 scale s per group of kActivationGroup neighbours.
//
//   s = max |x| / 32767 (int16_dot) or / 127 (int8_dot), not below 2^-124
//   q = x * (1 / s), rounded to the nearest, ties to even
// so that |x - q s| <= (1/2 + 2^-7) s: 1 / s, s and the product are rounded, and |q| < 2^15. A group with NaN or infinity gets
// s = NaN, a group of zeros q = 0. What is stored is s times the codec's kIntUnit, a power of two: a sum of (integer codes) * q
// times it is the sum of w x, for |x| < 2^120 below the end of fp32.
#pragma once

#include "kernels/kernel.h"
#include "kernels/vec.h"

namespace motet::MOTET_TARGET {
namespace {

inline constexpr std::int64_t kEncoded = 512;  // elements encoded together: the groups' maxima fill one vector
inline constexpr std::int64_t kEncodedGroups = kEncoded / kActivationGroup;

/// 512 encoded elements: q as signed words in order, and the groups' scales times the codec's unit.
struct EncodedRun {
  alignas(64) std::int16_t q[kEncoded];
  alignas(64) float scale[kEncodedGroups];
};

/// 16 elements.
MOTET_VEC F load_activations(const std::byte* x, DType dtype, std::int64_t at) {
  if (dtype == DType::f32) return load(reinterpret_cast<const float*>(x) + at);
  return as_float(shl<16>(widen2<1>(x + 2 * at, 16)));
}

/// Lane i of the result: the largest lane of v[i], as unsigned integers.
MOTET_VEC I largest_of_each(I (&v)[16]) {
  for (int n = 8; n >= 4; n /= 2)
    for (int i = 0; i < n; ++i) v[i] = at_least(even_dwords(v[2 * i], v[2 * i + 1]), odd_dwords(v[2 * i], v[2 * i + 1]));
  for (int n = 2; n >= 1; n /= 2)
    for (int i = 0; i < n; ++i) v[i] = at_least(even_quads(v[2 * i], v[2 * i + 1]), odd_quads(v[2 * i], v[2 * i + 1]));
  return v[0];
}

/// Encodes kEncoded elements, all readable.
template <int kBytes>
[[gnu::noinline]] void encode_whole(const std::byte* x, DType dtype, float unit, EncodedRun& out) {
  constexpr float kLargest = kBytes == 2 ? 32767.0f : 127.0f;
  // 1. Magnitudes compare as integers, NaN above infinity above numbers.
  I largest[16];
  const I magnitude = ibroadcast(0x7FFFFFFFu);
  for (int g = 0; g < 16; ++g)
    largest[g] = at_least(iand(as_dwords(load_activations(x, dtype, 32 * g)), magnitude),
                          iand(as_dwords(load_activations(x, dtype, 32 * g + 16)), magnitude));
  const F peak = as_float(largest_of_each(largest));
  // 2. Scales: infinity and NaN times zero are NaN.
  const F scale = as_float(at_least(as_dwords(divide(peak, broadcast(kLargest))), as_dwords(broadcast(0x1p-124f))));
  alignas(64) float inverse[16];
  store(inverse, divide(broadcast(1.0f), scale));
  store(out.scale, mul(fma(peak, zero(), scale), broadcast(unit)));
  // 3. Integers.
  for (int g = 0; g < 16; ++g) {
    const F factor = broadcast(inverse[g]);
    istore(out.q + 32 * g, pack_words(to_int(mul(load_activations(x, dtype, 32 * g), factor)),
                                      to_int(mul(load_activations(x, dtype, 32 * g + 16), factor))));
  }
}

/// Encodes `count` elements of x, at most kEncoded; zeros follow.
template <int kBytes>
MOTET_VEC void encode_run(const std::byte* x, DType dtype, std::int64_t count, float unit, EncodedRun& out) {
  if (count >= kEncoded) return encode_whole<kBytes>(x, dtype, unit, out);
  alignas(64) std::byte copy[kEncoded * 4] = {};
  __builtin_memcpy(copy, x, static_cast<std::size_t>(count * (dtype == DType::f32 ? 4 : 2)));
  encode_whole<kBytes>(copy, dtype, unit, out);
}

}  // namespace
}  // namespace motet::MOTET_TARGET
