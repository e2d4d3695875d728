// SPDX-License-Identifier: Apache-2.0
#include "backends/support/weights_check.h"

#include <string>

#include "plan/difference.h"
#include "plan/slices.h"

namespace motet {
namespace {

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

void check_against_spec(const LayerSpec& spec, std::int64_t routed, const LayerWeights& weights) {
  if (const auto difference = first_difference(spec, weights.spec))
    throw Error(ErrorCode::wrong_shape, "weights must be of the plan's layer, but they differ in " + difference->path + ": plan " +
                                            difference->first + ", weights " + difference->second +
                                            "; plan with the spec of these weights");
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
  if (weights.router.codes != nullptr) check_matrix("router", weights.router, routed + spec.router.zero_experts, spec.hidden);
}

}  // namespace

void check_weights(const Plan& plan, std::int64_t rank, const LayerWeights& weights) {
  check_against_spec(spec_of_rank(plan.spec, plan.ranks[static_cast<std::size_t>(rank)]), plan.spec.experts, weights);
}

void check_whole_weights(const Plan& plan, const LayerWeights& weights) {
  check_against_spec(plan.spec, plan.spec.experts, weights);
}

}  // namespace motet
