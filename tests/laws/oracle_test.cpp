// SPDX-License-Identifier: Apache-2.0
// The oracle of the laws, and proof that each of its mistakes is far outside what a right result may be off by.
#include <cmath>

#include "base/dtype.h"
#include "fixture.h"
#include "formats/format.h"

namespace motet::laws {
namespace {

using Vector = std::vector<double>;

Vector times(const WeightView& matrix, const std::string& format, const Vector& x) {
  Vector row(static_cast<std::size_t>(matrix.cols)), y;
  for (std::int64_t n = 0; n < matrix.rows; ++n) {
    find_format(format)->decode(matrix, n, 0, matrix.cols, row.data());
    double sum = 0;
    for (std::size_t k = 0; k < row.size(); ++k) sum += row[k] * x[k];
    y.push_back(sum);
  }
  return y;
}

double element(const BiasView& view, std::size_t i) {
  return load_as_f64(view.dtype, view.data + static_cast<std::int64_t>(i) * view.stride);
}

void add_bias(const BiasView& bias, Vector& y) {
  if (bias.data == nullptr) return;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += element(bias, i);
}

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

double body(const Activation& activation, double g, double u) {
  switch (activation.kind) {
    case ActivationKind::silu:
      return g * sigmoid(g) * u;
    case ActivationKind::relu2:
      return u > 0 ? u * u : 0;
    case ActivationKind::swiglu_oai: {
      const double gate = std::min(g, activation.limit), up = std::max(-activation.limit, std::min(u, activation.limit));
      return (up + activation.offset) * gate * sigmoid(activation.alpha * gate);
    }
    default:
      ADD_FAILURE() << "no formula here";
      return 0;
  }
}

struct Body {
  const Activation& activation;
  const std::string &gate_up_format, &down_format;
};

Vector expert(const Body& what, const ExpertView& weights, const Vector& x) {
  Vector up = times(weights.up, what.gate_up_format, x), gate(up.size());
  add_bias(weights.up_bias, up);
  if (what.activation.gated) {
    gate = times(weights.gate, what.gate_up_format, x);
    add_bias(weights.gate_bias, gate);
  }
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = body(what.activation, gate[i], up[i]);
  Vector y = times(weights.down, what.down_format, up);
  add_bias(weights.down_bias, y);
  return y;
}

void norm(const BiasView& weight, double epsilon, std::size_t width, Vector& y) {
  double squares = 0;
  for (const double value : y) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(y.size()) + epsilon);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= factor * (i < width ? element(weight, i) : 1);
}

Vector token_result(const LayerSpec& spec, const LayerWeights& weights, const Vector& x, const std::int32_t* index,
                    const float* weight, const Mistake& mistake) {
  const Body routed{spec.activation, spec.gate_up.format, spec.down.format};
  const bool on_input = spec.router.weight_site == WeightSite::input && !mistake.weigh_output_instead_of_input;
  const Vector in = spec.latent > 0 ? times(weights.latent_in, spec.latent_in.format, x) : x;
  Vector sum(static_cast<std::size_t>(spec.dispatch_width())), identity(x.size());
  for (std::int64_t k = 0; k < spec.top_k; ++k) {
    const double w = weight[k];
    if (index[k] >= spec.experts && spec.router.zero_expert_kind == ZeroExpertKind::identity)
      for (std::size_t i = 0; i < x.size(); ++i) identity[i] += w * x[i];
    if (index[k] < 0 || index[k] >= spec.experts) continue;
    Vector weighted = in;
    for (double& value : weighted) value *= on_input ? w : 1;
    const std::int64_t which = mistake.swap_experts ? (index[k] + 1) % spec.experts : index[k];
    const Vector y = expert(routed, weights.experts[static_cast<std::size_t>(which)], weighted);
    for (std::size_t i = 0; i < y.size(); ++i)
      sum[i] += (on_input && !mistake.weigh_twice ? 1 : mistake.weigh_twice && !on_input ? w * w : w) * y[i];
  }
  const double scale = spec.router.scale_site == ScaleSite::routed_sum && !mistake.forget_scale ? spec.router.scale : 1;
  for (double& value : sum) value *= scale;
  if (spec.latent > 0) {
    if (spec.latent_norm && !mistake.norm_after_projection) norm(weights.latent_norm, spec.latent_norm_epsilon, sum.size(), sum);
    const std::size_t latent = sum.size();
    sum = times(weights.latent_out, spec.latent_out.format, sum);
    if (spec.latent_norm && mistake.norm_after_projection) norm(weights.latent_norm, spec.latent_norm_epsilon, latent, sum);
  }
  if (spec.shared.intermediate > 0) {
    const Vector shared = expert({spec.shared.activation, spec.shared.gate_up.format, spec.shared.down.format}, weights.shared, x);
    double gate = 1;
    if (spec.shared.gate && !mistake.forget_shared_gate) {
      double dot = 0;
      for (std::size_t i = 0; i < x.size(); ++i) dot += element(weights.shared_gate, i) * x[i];
      gate = sigmoid(dot);
    }
    if (mistake.scale_shared) gate *= spec.router.scale;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gate * shared[i];
  }
  for (std::size_t i = 0; i < sum.size() && !mistake.forget_zero_experts; ++i) sum[i] += identity[i];
  return sum;
}

}  // namespace

std::vector<double> oracle(const LayerSpec& spec, const LayerWeights& weights, const std::vector<float>& hidden_states,
                           const Routing& routing, const Mistake& mistake) {
  const std::int64_t tokens = static_cast<std::int64_t>(hidden_states.size()) / spec.hidden;
  std::vector<double> output;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const Vector x(hidden_states.begin() + token * spec.hidden, hidden_states.begin() + (token + 1) * spec.hidden);
    Vector y = token_result(spec, weights, x, routing.index.data() + token * spec.top_k,
                            routing.weights.data() + token * spec.top_k, mistake);
    if (mistake.skip_last_token && token + 1 == tokens) y.assign(y.size(), 0);
    output.insert(output.end(), y.begin(), y.end());
  }
  return output;
}

namespace {

struct MistakeCase {
  const char* shape;
  Mistake mistake;
};

TEST(Oracle, EachMistakeIsFarOutsideTheLoosestBound) {
  const MistakeCase cases[] = {{"weight-on-input", {.weigh_output_instead_of_input = true}},
                               {"intermediate-704", {.weigh_twice = true}},
                               {"hidden-2688-shared", {.scale_shared = true}},
                               {"intermediate-720-scaled", {.forget_scale = true}},
                               {"hidden-2880", {.skip_last_token = true}},
                               {"intermediate-704", {.swap_experts = true}},
                               {"intermediate-1856-gated-shared", {.forget_shared_gate = true}},
                               {"latent-1024-norm", {.norm_after_projection = true}},
                               {"zero-experts", {.forget_zero_experts = true}}};
  for (const MistakeCase& wrong : cases) {
    SCOPED_TRACE(wrong.shape);
    const LayerSpec& spec = check_shape(wrong.shape);
    const auto weights = weights_of(spec);
    const std::vector<float> x = inputs_of(spec, 4);
    const Routing routing = routing_of(spec, 4);
    const std::vector<double> mistaken = oracle(spec, *weights, x, routing, wrong.mistake);
    const double bound =
        plan_way(spec, {.backend = "cpu", .target = "", .arithmetic = Arithmetic::bf16}, 4, machine()).value().recipe.error_bound;
    EXPECT_GT(distance(std::vector<float>(mistaken.begin(), mistaken.end()), oracle(spec, *weights, x, routing)), 4 * bound);
  }
}

}  // namespace
}  // namespace motet::laws
