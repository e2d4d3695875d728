// SPDX-License-Identifier: Apache-2.0
#include "kernels/elements.h"

#if defined(MOTET_TARGET)
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numbers.h"

// Nothing here reads floating-point exception flags; without this GCC keeps every comparison as a branch and vectorises no body.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif

namespace motet::MOTET_TARGET {
namespace {

// e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2: Taylor to r^7 leaves r^8 / 8! < 6e-9. ln 2 in two parts, the first with
// few enough bits that n times it is exact. Adding 1.5 * 2^23 rounds to an integer that then stands in the low mantissa bits.
[[gnu::always_inline]] inline float exp_of(float x) noexcept {
  constexpr float kRound = 12582912.0f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * f32_of_bits((bits_of_f32(shifted) + 127u) << 23);
}

[[gnu::always_inline]] inline float sigmoid(float x) noexcept { return 1.0f / (1.0f + exp_of(-x)); }
// Comparisons that NaN fails: it stays NaN.
[[gnu::always_inline]] inline float at_most(float x, float limit) noexcept { return x > limit ? limit : x; }
[[gnu::always_inline]] inline float clamped(float x, float limit) noexcept {
  x = x > limit ? limit : x;
  return x < -limit ? -limit : x;
}

template <class Function>
[[gnu::always_inline]] inline void with_gate(const float* __restrict gate, float* __restrict up, std::int64_t count,
                                             Function function) noexcept {
  for (std::int64_t i = 0; i < count; ++i) up[i] = function(gate[i], up[i]);
}

float silu(float g) noexcept { return g * sigmoid(g); }
// (1 + tanh z) / 2 = sigmoid(2 z)
float gelu_tanh(float g) noexcept { return g * sigmoid(1.5957691216f * (g + 0.044715f * g * g * g)); }

void apply_relu2(float* up, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const float r = up[i] < 0.0f ? 0.0f : up[i];
    up[i] = r * r;
  }
}

void apply_gated(const Activation& a, const float* gate, float* up, std::int64_t count) noexcept {
  const float limit = a.limit > 0 ? static_cast<float>(a.limit) : std::numeric_limits<float>::infinity();
  const auto alpha = static_cast<float>(a.alpha), offset = static_cast<float>(a.offset);
  switch (a.kind) {
    case ActivationKind::silu:
      return with_gate(gate, up, count, [](float g, float u) { return silu(g) * u; });
    case ActivationKind::gelu_tanh:
      return with_gate(gate, up, count, [](float g, float u) { return gelu_tanh(g) * u; });
    case ActivationKind::swiglu_oai:
      return with_gate(gate, up, count, [=](float g, float u) {
        const float limited = at_most(g, limit);
        return (clamped(u, limit) + offset) * (limited * sigmoid(alpha * limited));
      });
    case ActivationKind::swiglu_clamped:
      return with_gate(gate, up, count, [=](float g, float u) { return silu(at_most(g, limit)) * clamped(u, limit); });
    case ActivationKind::swiglu_step:
      return with_gate(gate, up, count, [=](float g, float u) { return at_most(silu(g), limit) * clamped(u, limit); });
    case ActivationKind::situ:
      return with_gate(gate, up, count, [=](float g, float u) {
        return alpha * __builtin_tanhf(g / alpha) * sigmoid(g) * (limit * __builtin_tanhf(u / limit));
      });
    case ActivationKind::relu2:
      return;
  }
}

float body_exp(float x) noexcept { return exp_of(x); }

void apply_body(const Activation& activation, const float* gate, float* up, std::int64_t count) noexcept {
  if (activation.kind == ActivationKind::relu2) return apply_relu2(up, count);
  apply_gated(activation, gate, up, count);
}

/// f32_to_bf16 in the upper half, which takes a third fewer instructions where it is vectorised; the lower half is of no meaning.
[[gnu::always_inline]] inline std::uint32_t bf16_bits(float value) noexcept {
  const std::uint32_t bits = bits_of_f32(value), nearest = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return value != value ? bits | 0x00400000u : nearest;
}
[[gnu::always_inline]] inline void store_bf16(const float* values, std::int64_t count, std::uint16_t* __restrict out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<std::uint16_t>(bf16_bits(values[i]) >> 16);
}

void store_as(DType dtype, const float* values, std::int64_t count, std::byte* out) noexcept {
  if (dtype == DType::f32) {
    std::memcpy(out, values, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  store_bf16(values, count, reinterpret_cast<std::uint16_t*>(out));
}

void load_as_f32(DType dtype, const std::byte* values, std::int64_t count, const float* scale, float* out) noexcept {
  if (dtype == DType::f32) {
    std::memcpy(out, values, static_cast<std::size_t>(count) * sizeof(float));
  } else if (dtype == DType::bf16) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_unaligned<std::uint16_t>(values + i * 2));
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = f16_to_f32(load_unaligned<std::uint16_t>(values + i * 2));
  }
  if (scale == nullptr) return;
  const float factor = *scale;
  for (std::int64_t i = 0; i < count; ++i) out[i] *= factor;
}

// Elements that are made in the first cache before they are stored, and how far ahead of them rows are fetched: the processor's own
// fetching ends with each page of 4 KiB. Evidence: an exchange of 4096 tokens of 7168 in bf16 takes 1.50 times a plain copy of its
// bytes, but 1.68 times in blocks of 1024 without fetching, and 1.67 times with cached stores (bench/exchange_bench, medians of ten
// runs on a busy machine, Zen 3, December 2026).
constexpr std::int64_t kBlock = 128, kAhead = 4096;

[[gnu::always_inline]] inline void fetch_ahead(const void* from, std::int64_t bytes) noexcept {
  const auto* const ahead = static_cast<const std::byte*>(from) + kAhead;
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
}

/// Copies; `around` leaves stores in flight, which drain() ends.
[[gnu::always_inline]] inline void put(const std::byte* from, std::int64_t bytes, std::byte* out, Stores stores) noexcept {
#if defined(__x86_64__)
  if (stores == Stores::around) {
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % 16);
    const std::int64_t head = std::min(bytes, past == 0 ? 0 : 16 - past), whole = (bytes - head) / 16 * 16;
    std::memcpy(out, from, static_cast<std::size_t>(head));
    for (std::int64_t i = head; i < head + whole; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    std::memcpy(out + head + whole, from + head + whole, static_cast<std::size_t>(bytes - head - whole));
    return;
  }
#endif
  std::memcpy(out, from, static_cast<std::size_t>(bytes));
}

[[gnu::always_inline]] inline void drain([[maybe_unused]] Stores stores) noexcept {
#if defined(__x86_64__)
  if (stores == Stores::around) _mm_sfence();
#endif
}

void copy(const std::byte* from, std::int64_t bytes, std::byte* out, Stores stores) noexcept {
  put(from, bytes, out, stores);
  drain(stores);
}

void send_as(DType dtype, const float* values, std::int64_t count, std::byte* out, Stores stores) noexcept {
  if (dtype == DType::f32) return copy(reinterpret_cast<const std::byte*>(values), count * 4, out, stores);
  alignas(64) std::uint16_t block[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    fetch_ahead(values + begin, size * 4);
    store_bf16(values + begin, size, stores == Stores::cached ? reinterpret_cast<std::uint16_t*>(out) + begin : block);
    if (stores == Stores::around) put(reinterpret_cast<const std::byte*>(block), size * 2, out + begin * 2, stores);
  }
  drain(stores);
}

/// sum = sum + w y, from +0 when it is the first, which makes +0 of a -0.
template <class Value>
[[gnu::always_inline]] inline void add(bool first, const float* weight, std::int64_t count, float* __restrict sum,
                                       Value value) noexcept {
  const float factor = weight == nullptr ? 1.0f : *weight;  // times 1 changes no bit
  if (first)
    for (std::int64_t i = 0; i < count; ++i) sum[i] = 0.0f + factor * value(i);
  else
    for (std::int64_t i = 0; i < count; ++i) sum[i] = sum[i] + factor * value(i);
}

/// Elements [begin, begin + count) of a term.
[[gnu::always_inline]] inline void add_term(bool first, DType wire, const SumTerm& term, std::int64_t begin, std::int64_t count,
                                            float* __restrict sum) noexcept {
  const bool bf16 = wire == DType::bf16;
  if (term.unrounded != nullptr) {
    const float* const row = term.unrounded + begin;
    fetch_ahead(row, count * 4);
    if (bf16)
      add(first, term.weight, count, sum, [=](std::int64_t i) { return f32_of_bits(bf16_bits(row[i]) & 0xFFFF0000u); });
    else
      add(first, term.weight, count, sum, [=](std::int64_t i) { return row[i]; });
  } else if (bf16) {
    const std::byte* const row = term.stored + begin * 2;
    fetch_ahead(row, count * 2);
    add(first, term.weight, count, sum, [=](std::int64_t i) { return bf16_to_f32(load_unaligned<std::uint16_t>(row + i * 2)); });
  } else {
    const std::byte* const row = term.stored + begin * 4;
    fetch_ahead(row, count * 4);
    add(first, term.weight, count, sum, [=](std::int64_t i) { return load_unaligned<float>(row + i * 4); });
  }
}

void sum_rows(DType wire, std::span<const SumTerm> terms, std::int64_t count, float* out, Stores stores) noexcept {
  alignas(64) float block[kBlock];
  bool in_place = stores == Stores::cached;
  for (const SumTerm& term : terms) in_place = in_place && term.unrounded != out;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    float* const sum = in_place ? out + begin : block;
    if (terms.empty()) std::memset(sum, 0, static_cast<std::size_t>(size) * sizeof(float));
    for (const SumTerm& term : terms) add_term(&term == terms.data(), wire, term, begin, size, sum);
    if (!in_place) put(reinterpret_cast<const std::byte*>(sum), size * 4, reinterpret_cast<std::byte*>(out + begin), stores);
  }
  drain(stores);
}

#define MOTET_TEXT_OF(name) #name
#define MOTET_TEXT(name) MOTET_TEXT_OF(name)
constexpr ElementKernels kElements = {
    MOTET_TEXT(MOTET_TARGET), apply_body, body_exp, store_as, load_as_f32, copy, send_as, sum_rows};

}  // namespace
}  // namespace motet::MOTET_TARGET

namespace motet {
namespace target_tag {
struct MOTET_TARGET;
}
template <>
const ElementKernels& elements_of<target_tag::MOTET_TARGET>() noexcept {
  return MOTET_TARGET::kElements;
}
}  // namespace motet

#else
namespace motet {

namespace target_tag {
#define MOTET_TARGET_LINE(name, flags, needs) struct name;
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
}  // namespace target_tag

#define MOTET_TARGET_LINE(name, flags, needs) \
  template <>                                 \
  const ElementKernels& elements_of<target_tag::name>() noexcept;
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE

const ElementKernels* find_elements(std::string_view target) noexcept {
#define MOTET_TARGET_LINE(name, flags, needs) \
  if (target == #name) return &elements_of<target_tag::name>();
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
  return nullptr;
}

}  // namespace motet
#endif
