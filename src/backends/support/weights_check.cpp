// SPDX-License-Identifier: Apache-2.0
#include "backends/support/weights_check.h"

#include <type_traits>

namespace motet {
namespace {

std::string shown(const std::string& value) { return "'" + value + "'"; }
std::string shown(bool value) { return value ? "true" : "false"; }
template <class T>
std::string shown(T value) {
  if constexpr (std::is_enum_v<T>) {
    return "enumerator " + std::to_string(static_cast<long long>(value));
  } else {
    return std::to_string(value);
  }
}

/// Collects the first difference.
struct Difference {
  std::string text;
  template <class T>
  void field(const std::string& name, const T& plan, const T& weights) {
    if (text.empty() && !(plan == weights)) text = name + ": plan " + shown(plan) + ", weights " + shown(weights);
  }
};

void compare(Difference& out, const std::string& name, const ProjectionSpec& plan, const ProjectionSpec& weights) {
  out.field(name + ".format", plan.format, weights.format);
  out.field(name + ".block_rows", plan.block_rows, weights.block_rows);
  out.field(name + ".block_cols", plan.block_cols, weights.block_cols);
  out.field(name + ".transposed", plan.transposed, weights.transposed);
  out.field(name + ".bias", plan.bias, weights.bias);
}

void compare(Difference& out, const std::string& name, const Activation& plan, const Activation& weights) {
  out.field(name + ".kind", plan.kind, weights.kind);
  out.field(name + ".gated", plan.gated, weights.gated);
  out.field(name + ".alpha", plan.alpha, weights.alpha);
  out.field(name + ".limit", plan.limit, weights.limit);
  out.field(name + ".offset", plan.offset, weights.offset);
}

void compare(Difference& out, const SharedExpertSpec& plan, const SharedExpertSpec& weights) {
  out.field("shared.intermediate", plan.intermediate, weights.intermediate);
  out.field("shared.gate", plan.gate, weights.gate);
  out.field("shared.gate_up_order", plan.gate_up_order, weights.gate_up_order);
  compare(out, "shared.activation", plan.activation, weights.activation);
  compare(out, "shared.gate_up", plan.gate_up, weights.gate_up);
  compare(out, "shared.down", plan.down, weights.down);
}

[[noreturn]] void refuse_matrix(const std::string& name, std::int64_t rows, std::int64_t cols, const WeightView& view) {
  throw Error(ErrorCode::wrong_shape, name + " must be [" + std::to_string(rows) + ", " + std::to_string(cols) + "], given [" +
                                          std::to_string(view.rows) + ", " + std::to_string(view.cols) +
                                          "]; load the weights with the plan's spec");
}

void check_matrix(const std::string& name, const WeightView& view, std::int64_t rows, std::int64_t cols) {
  if (view.codes == nullptr || view.rows != rows || view.cols != cols) refuse_matrix(name, rows, cols, view);
}

void check_bias(const std::string& name, const BiasView& bias, bool wanted, std::int64_t count) {
  if (wanted == (bias.data != nullptr) && (!wanted || bias.count == count)) return;
  throw Error(ErrorCode::wrong_shape, name + " must have " + std::to_string(wanted ? count : 0) + " elements, given " +
                                          std::to_string(bias.data == nullptr ? 0 : bias.count) +
                                          "; load the weights with the plan's spec");
}

struct BodyExtents {
  std::int64_t width, intermediate;
  bool gated, gate_up_bias, down_bias;
};

void check_body(const std::string& name, const ExpertView& body, const BodyExtents& extents) {
  if (extents.gated) check_matrix(name + ".gate", body.gate, extents.intermediate, extents.width);
  check_matrix(name + ".up", body.up, extents.intermediate, extents.width);
  check_matrix(name + ".down", body.down, extents.width, extents.intermediate);
  check_bias(name + ".gate_bias", body.gate_bias, extents.gated && extents.gate_up_bias, extents.intermediate);
  check_bias(name + ".up_bias", body.up_bias, extents.gate_up_bias, extents.intermediate);
  check_bias(name + ".down_bias", body.down_bias, extents.down_bias, extents.width);
}

}  // namespace

std::string first_difference(const LayerSpec& plan, const LayerSpec& weights) {
  Difference out;
  out.field("family", plan.family, weights.family);
  out.field("layer", plan.layer, weights.layer);
  out.field("hidden", plan.hidden, weights.hidden);
  out.field("latent", plan.latent, weights.latent);
  out.field("intermediate", plan.intermediate, weights.intermediate);
  out.field("experts", plan.experts, weights.experts);
  out.field("top_k", plan.top_k, weights.top_k);
  compare(out, "activation", plan.activation, weights.activation);
  out.field("gate_up_order", plan.gate_up_order, weights.gate_up_order);
  compare(out, "gate_up", plan.gate_up, weights.gate_up);
  compare(out, "down", plan.down, weights.down);
  compare(out, plan.shared, weights.shared);
  compare(out, "latent_in", plan.latent_in, weights.latent_in);
  compare(out, "latent_out", plan.latent_out, weights.latent_out);
  out.field("latent_norm", plan.latent_norm, weights.latent_norm);
  out.field("router.weight_dtype", plan.router.weight_dtype, weights.router.weight_dtype);
  out.field("router.zero_experts", plan.router.zero_experts, weights.router.zero_experts);
  if (out.text.empty() && !(plan == weights)) out.text = "router: the rules differ";
  return out.text;
}

void check_weights(const Plan& plan, const LayerWeights& weights) {
  const std::string difference = first_difference(plan.spec, weights.spec);
  if (!difference.empty())
    throw Error(ErrorCode::wrong_shape,
                "weights must be of the plan's layer, but they differ in " + difference + "; plan with the spec of these weights");
  if (plan.ranks.size() != 1) {
    throw Error(ErrorCode::not_supported, "this build runs one rank, the plan has " + std::to_string(plan.ranks.size()) +
                                              ": the exchange is not built; plan with tp = 1 and ep = 1");
  }
  const LayerSpec& spec = plan.spec;
  if (static_cast<std::int64_t>(weights.experts.size()) != spec.experts) {
    throw Error(ErrorCode::wrong_shape, "the layer has " + std::to_string(spec.experts) + " experts, the weights have " +
                                            std::to_string(weights.experts.size()) + "; load all of them");
  }
  for (std::size_t e = 0; e < weights.experts.size(); ++e) {
    check_body("expert " + std::to_string(e), weights.experts[e],
               {spec.dispatch_width(), spec.intermediate, spec.activation.gated, spec.gate_up.bias, spec.down.bias});
  }
  if (spec.shared.intermediate > 0) {
    check_body(
        "shared expert", weights.shared,
        {spec.hidden, spec.shared.intermediate, spec.shared.activation.gated, spec.shared.gate_up.bias, spec.shared.down.bias});
  }
  if (spec.latent > 0) {
    check_matrix("latent_in", weights.latent_in, spec.latent, spec.hidden);
    check_matrix("latent_out", weights.latent_out, spec.hidden, spec.latent);
  }
  if (weights.router.codes != nullptr) check_matrix("router", weights.router, spec.experts + spec.router.zero_experts, spec.hidden);
}

}  // namespace motet
