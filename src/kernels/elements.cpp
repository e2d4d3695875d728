// SPDX-License-Identifier: Apache-2.0
#include "kernels/elements.h"

#if defined(MOTET_TARGET)
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

void store_as(DType dtype, const float* values, std::int64_t count, std::byte* out) noexcept {
  if (dtype == DType::f32) {
    std::memcpy(out, values, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  auto* to = reinterpret_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < count; ++i) to[i] = f32_to_bf16(values[i]);
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

#define MOTET_TEXT_OF(name) #name
#define MOTET_TEXT(name) MOTET_TEXT_OF(name)
constexpr ElementKernels kElements = {MOTET_TEXT(MOTET_TARGET), apply_body, body_exp, store_as, load_as_f32};

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
