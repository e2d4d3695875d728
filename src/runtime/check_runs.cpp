// SPDX-License-Identifier: Apache-2.0
#include "runtime/check_runs.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "routing/router_names.h"
#include "runtime/catalog.h"

namespace motet {
namespace {

ProjectionSpec bf16_projection(bool bias = false) { return ProjectionSpec{.format = "bf16", .bias = bias}; }

struct SmallShape {
  std::int64_t hidden, intermediate, experts, top_k;
  const char* router;
};

LayerSpec small_layer(const char* family, const SmallShape& shape) {
  const NamedRouter* router = find_router(shape.router);
  MOTET_CHECK(router != nullptr, "no router %s", shape.router);
  LayerSpec spec;
  spec.family = family;
  spec.hidden = shape.hidden;
  spec.intermediate = shape.intermediate;
  spec.experts = shape.experts;
  spec.top_k = shape.top_k;
  spec.gate_up = spec.down = bf16_projection();
  spec.router = router->spec;
  spec.router.groups = spec.router.groups_kept = 1;
  return spec;
}

void add_shared(LayerSpec& spec, std::int64_t intermediate, bool gate) {
  spec.shared.intermediate = intermediate;
  spec.shared.gate = gate;
  spec.shared.activation = spec.activation;
  spec.shared.gate_up = spec.shared.down = bf16_projection();
}

std::vector<NamedShape> build_shapes() {
  std::vector<NamedShape> shapes;
  const auto add = [&](const char* name, const LayerSpec& spec) {
    shapes.push_back(NamedShape{.name = name, .spec = spec, .source = "checks"});
  };

  LayerSpec gpt_oss = small_layer("gpt_oss", {2880, 96, 4, 2, "top_k_softmax"});
  gpt_oss.activation = {.kind = ActivationKind::swiglu_oai, .alpha = 1.702, .limit = 7, .offset = 1};
  gpt_oss.gate_up = gpt_oss.down = bf16_projection(true);
  add("hidden-2880", gpt_oss);

  LayerSpec nemotron = small_layer("nemotron_h", {2688, 64, 4, 2, "sigmoid_group_sum"});
  nemotron.activation = {.kind = ActivationKind::relu2, .gated = false};
  add_shared(nemotron, 96, false);
  add("hidden-2688-shared", nemotron);

  LayerSpec latent = small_layer("nemotron_h", {640, 96, 6, 3, "sigmoid_group_sum"});
  latent.activation = {.kind = ActivationKind::relu2, .gated = false};
  latent.latent = 1024;
  latent.latent_in = latent.latent_out = bf16_projection();
  add_shared(latent, 96, false);
  add("latent-1024", latent);
  latent.shared = {};
  latent.latent_norm = true;
  latent.router.scale_site = ScaleSite::routed_sum;
  add("latent-1024-norm", latent);

  add("intermediate-704", small_layer("mixtral", {192, 704, 8, 8, "softmax_sum"}));
  LayerSpec scaled = small_layer("qwen3_moe", {96, 720, 5, 2, "sigmoid_sum_scale"});
  add("intermediate-720-scaled", scaled);
  LayerSpec gated = small_layer("qwen2_moe", {128, 1856, 3, 2, "softmax"});
  add_shared(gated, 160, true);
  add("intermediate-1856-gated-shared", gated);

  LayerSpec llama4 = small_layer("llama4", {320, 128, 4, 1, "sigmoid_input"});
  add_shared(llama4, 128, false);
  add("weight-on-input", llama4);

  LayerSpec zero = small_layer("qwen3_moe", {224, 64, 4, 3, "softmax_zero_experts"});
  zero.router.zero_experts = 4;
  add("zero-experts", zero);
  return shapes;
}

}  // namespace

std::vector<NamedShape> check_shapes() {
  static const std::vector<NamedShape> built = build_shapes();
  return built;
}

const LayerSpec& check_shape(const std::string& name) {
  static const std::vector<NamedShape> built = build_shapes();
  for (const NamedShape& shape : built)
    if (shape.name == name) return shape.spec;
  throw Error(ErrorCode::invalid_argument,
              "a check shape must be one of check_shapes(), but '" + name + "' was given; choose one of them");
}

std::string CheckWay::name() const {
  return backend + (target.empty() ? "" : ":" + target) + ":" + std::string(name_of(arithmetic)) +
         (residence == Residence::packed ? ":packed" : "");
}

std::vector<CheckWay> check_ways(const Environment& environment) {
  std::vector<CheckWay> ways;
  for (const BackendTraits& backend : catalog().backends) {
    if (!backend.has_targets) {
      ways.push_back({.backend = std::string(backend.name), .target = "", .arithmetic = backend.best_level});
      continue;
    }
    const std::pair<Arithmetic, Residence> forms[] = {{Arithmetic::exact, Residence::mapped},
                                                      {Arithmetic::bf16, Residence::mapped},
                                                      {Arithmetic::fast, Residence::mapped},
                                                      {Arithmetic::exact, Residence::packed},
                                                      {Arithmetic::bf16, Residence::packed}};
    for (const TargetFacts& target : environment.targets)
      for (const auto& [arithmetic, residence] : forms)
        ways.push_back(
            {.backend = std::string(backend.name), .target = target.name, .arithmetic = arithmetic, .residence = residence});
  }
  return ways;
}

PlanResult plan_way(const LayerSpec& spec, const CheckWay& way, std::int64_t tokens, const Environment& environment) {
  Deployment deployment;
  deployment.tokens = tokens;
  deployment.input = DType::f32;
  deployment.wishes.backend = way.backend;
  deployment.wishes.target = way.target;
  deployment.wishes.arithmetic = way.arithmetic;
  deployment.wishes.residence = way.residence;
  deployment.wishes.finalize = way.finalize;
  deployment.wishes.invariant = way.invariant;
  deployment.wishes.threads = way.threads;
  return plan(spec, deployment, environment);
}

CheckRun run_tokens(Layer& layer, const std::vector<float>& hidden_states, std::int64_t begin, std::int64_t count) {
  const LayerSpec& spec = layer.plan().spec;
  CheckRun run;
  run.output.resize(static_cast<std::size_t>(count * spec.hidden));
  run.index.resize(static_cast<std::size_t>(count * spec.top_k));
  run.weights.resize(run.index.size());
  ForwardInput input;
  input.hidden_states = {hidden_states.data() + begin * spec.hidden, DType::f32, count, spec.hidden};
  ForwardOutput output;
  output.output = {run.output.data(), DType::f32, count, spec.hidden};
  output.top_k_index = run.index.data();
  output.top_k_weights = run.weights.data();
  run.status = layer.forward(input, output);
  return run;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void identity_hook(void*, const HookRow& row) noexcept {
  for (std::int64_t i = 0; i < row.width; ++i) row.row[i] = row.row[i] * row.weight;
}

}  // namespace motet
