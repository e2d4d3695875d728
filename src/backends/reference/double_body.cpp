// SPDX-License-Identifier: Apache-2.0
#include "backends/reference/double_body.h"

#include <cmath>

namespace motet {
namespace {

double sigmoid(double x) noexcept { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) noexcept { return x / (1.0 + std::exp(-x)); }
// Comparisons, not fmin: NaN must stay NaN.
double at_most(double x, double limit) noexcept { return limit > 0 && x > limit ? limit : x; }
double clamped(double x, double limit) noexcept { return limit > 0 && x < -limit ? -limit : at_most(x, limit); }
double gelu_tanh(double x) noexcept { return 0.5 * x * (1.0 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }

}  // namespace

double double_body(const Activation& a, double g, double u) noexcept {
  switch (a.kind) {
    case ActivationKind::silu:
      return silu(g) * u;
    case ActivationKind::gelu_tanh:
      return gelu_tanh(g) * u;
    case ActivationKind::swiglu_oai:
      return (clamped(u, a.limit) + a.offset) * at_most(g, a.limit) * sigmoid(a.alpha * at_most(g, a.limit));
    case ActivationKind::swiglu_clamped:
      return silu(at_most(g, a.limit)) * clamped(u, a.limit);
    case ActivationKind::swiglu_step:
      return at_most(silu(g), a.limit) * clamped(u, a.limit);
    case ActivationKind::situ:
      return a.alpha * std::tanh(g / a.alpha) * sigmoid(g) * a.limit * std::tanh(u / a.limit);
    case ActivationKind::relu2:
      return u < 0 ? 0.0 : u * u;
  }
  return 0;
}

}  // namespace motet
