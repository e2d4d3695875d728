// SPDX-License-Identifier: Apache-2.0
#include "fixture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "runtime/law_checks.h"
#include "runtime/layer_impl.h"

namespace motet::laws {

const Environment& machine() {
  static const Environment probed = Environment::probe();
  return probed;
}

std::vector<CheckWay> usable_ways() {
  std::vector<CheckWay> usable;
  const std::string best = machine().targets.front().name;  // usable ones come first; MOTET_TARGET puts another first
  const std::string second = kSlow ? "" : "generic";
  for (const CheckWay& way : check_ways(machine()))
    if (way.target.empty() || way.target == best || way.target == second) usable.push_back(way);
  return usable;
}

CheckWay reference_way() { return {.backend = "reference", .target = "", .threads = 1}; }

LayerSpec shape_in(const std::string& shape, const std::string& format) { return with_format(check_shape(shape), format); }

std::shared_ptr<const LayerWeights> weights_of(const LayerSpec& spec) {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<const LayerWeights>> made;
  const std::scoped_lock lock(mutex);
  for (const auto& weights : made)
    if (weights->spec == spec) return weights;
  return made.emplace_back(synthetic_weights(spec, 1));
}

std::vector<float> inputs_of(const LayerSpec& spec, std::int64_t tokens, std::uint64_t seed) {
  return synthetic_hidden_states(tokens, spec.hidden, seed);
}

std::unique_ptr<Layer> make_layer(const LayerSpec& spec, const CheckWay& way, std::int64_t tokens, const Hooks& hooks,
                                  bool poison) {
  return create_layer(plan_way(spec, way, tokens, machine()).value(), weights_of(spec), hooks, nullptr, {.poison = poison});
}

Routing routing_of(const LayerSpec& spec, std::int64_t tokens, std::uint64_t seed) {
  Routing routing;
  synthetic_routing(spec, tokens, RoutingPattern::uniform, seed, routing.index, routing.weights);
  for (float& weight : routing.weights) weight *= 0.6f;  // a lone weight would be 1 and hide where it acts
  return routing;
}

CheckRun run_given(Layer& layer, const std::vector<float>& hidden_states, const Routing& routing) {
  const LayerSpec& spec = layer.plan().spec;
  const std::int64_t tokens = static_cast<std::int64_t>(hidden_states.size()) / spec.hidden;
  CheckRun run;
  run.output.resize(hidden_states.size());
  run.index.resize(routing.index.size());
  run.weights.resize(routing.weights.size());
  ForwardInput input;
  input.hidden_states = {hidden_states.data(), DType::f32, tokens, spec.hidden};
  input.top_k_index = routing.index.data();
  input.top_k_weights = routing.weights.data();
  input.absent_id = routing.absent_id;
  ForwardOutput output;
  output.output = {run.output.data(), DType::f32, tokens, spec.hidden};
  output.top_k_index = run.index.data();
  output.top_k_weights = run.weights.data();
  run.status = layer.forward(input, output);
  return run;
}

double distance(const std::vector<float>& output, const std::vector<double>& truth) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    error += (output[i] - truth[i]) * (output[i] - truth[i]);
    size += truth[i] * truth[i];
  }
  return std::sqrt(error / size);
}

void hold_everywhere(const std::string& law_check) {
  const auto checks = law_checks();
  const auto found = std::find_if(checks.begin(), checks.end(), [&](const LawCheck& check) { return check.name == law_check; });
  ASSERT_NE(found, checks.end()) << law_check;
  int ran = 0, pair = 0;
  const std::vector<CheckWay> ways = usable_ways();
  for (const NamedShape& shape : check_shapes()) {
    const LayerSpec spec = with_format(shape.spec, shape.name == "hidden-2880" ? "mxfp4" : "bf16");
    pair += ways.size() % 3 == 0 ? 1 : 0;  // another third of the ways for each shape
    for (const CheckWay& way : ways) {
      if (pair++ % 3 != 0 && kSlow) continue;
      const LawSubject subject{spec, weights_of(spec), way, machine()};
      if (found->exempt(subject)) continue;
      SCOPED_TRACE(shape.name + " by " + way.name());
      std::optional<std::string> failure;
      EXPECT_NO_THROW(failure = found->check(subject));
      EXPECT_EQ(failure.value_or(""), "");
      ++ran;
    }
  }
  EXPECT_GT(ran, 0);
}

}  // namespace motet::laws
