// SPDX-License-Identifier: Apache-2.0
// L6 layout is a type: layers whose backend reads activation scales flat or swizzled.
#include <algorithm>
#include <cmath>

#include "fixture.h"
#include "formats/activation/encode.h"

namespace motet::laws {
namespace {

const CheckWay kFlat{.backend = "twin_flat", .target = "", .arithmetic = Arithmetic::fast};
const CheckWay kSwizzled{.backend = "twin_swizzled", .target = "", .arithmetic = Arithmetic::fast};

/// Hidden states whose blocks of 32 have an exponent each, so that no scale can stand for another.
std::vector<float> inputs_by_block(const LayerSpec& spec, std::int64_t tokens) {
  std::vector<float> x = inputs_of(spec, tokens);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t token = i / static_cast<std::size_t>(spec.hidden), block = i % static_cast<std::size_t>(spec.hidden) / 32;
    x[i] *= std::ldexp(1.0f, static_cast<int>((7 * token + 5 * block) % 13) - 6);
  }
  return x;
}

/// Eight experts that get 0, 1, 2, 16, 127, 128, 129 and 5 of 129 tokens.
Routing routing_by_counts(const LayerSpec& spec) {
  constexpr std::int64_t kCounts[] = {0, 1, 2, 16, 127, 128, 129, 5};
  Routing routing;
  for (std::int64_t token = 0; token < 129; ++token) {
    for (std::int64_t e = 0; e < spec.top_k; ++e) {
      routing.index.push_back(token < kCounts[e] ? static_cast<std::int32_t>(e) : kAbsent);
      routing.weights.push_back(0.125f * static_cast<float>(e + 1));
    }
  }
  return routing;
}

/// Eight experts, top 8; widths that are no multiple of 32.
LayerSpec ragged() {
  LayerSpec spec = check_shape("intermediate-704");
  spec.hidden = 200;
  spec.intermediate = 72;
  return spec;
}

TEST(L6, FlatAndSwizzledScalesGiveTheSameBits) {
  for (const LayerSpec& spec : {ragged(), shape_in("intermediate-704", "mxfp4")}) {
    const std::vector<float> x = inputs_by_block(spec, 129);
    const Routing routing = routing_by_counts(spec);
    const CheckRun flat = run_given(*make_layer(spec, kFlat, 129), x, routing);
    for (const CheckWay& way : {kFlat, kSwizzled}) {
      const CheckRun poisoned = run_given(*make_layer(spec, way, 129, {}, true), x, routing);
      ASSERT_TRUE(poisoned.status.ok()) << poisoned.status.text();
      EXPECT_TRUE(same_bits(flat.output, poisoned.output)) << way.name() << ", " << spec.gate_up.format;
    }
  }
}

TEST(L6, QuantisedActivationsKeepTheirOwnBoundAndAWrongResultDoesNot) {
  for (const NamedShape& shape : check_shapes()) {
    const LayerSpec& spec = shape.spec;
    const std::vector<float> x = inputs_of(spec, 5);
    const Routing routing = routing_of(spec, 5);
    for (const CheckWay& way : {kFlat, kSwizzled}) {
      const auto layer = make_layer(spec, way, 5);
      const double bound = layer->plan().recipe.error_bound;
      const CheckRun run = run_given(*layer, x, routing);
      EXPECT_LE(distance(run.output, oracle(spec, *weights_of(spec), x, routing)), bound) << shape.name << " by " << way.name();
      EXPECT_GT(distance(run.output, oracle(spec, *weights_of(spec), x, routing, {.swap_experts = true})), bound) << shape.name;
      EXPECT_GT(distance(run.output, oracle(spec, *weights_of(spec), x, routing, {.skip_last_token = true})), bound) << shape.name;
    }
  }
}

TEST(L6, ThePlanNamesTheLayoutOfEveryScale) {
  const LayerSpec spec = ragged();
  for (const CheckWay& way : {kFlat, kSwizzled}) {
    const Plan plan = plan_way(spec, way, 129, machine()).value();
    int found = 0;
    for (const Stage& stage : plan.stages) {
      for (const TensorType& tensor : stage.out) {
        if (tensor.dtype != DType::f8_e8m0 || tensor.name == "linear_scales") continue;
        EXPECT_EQ(tensor.layout, way.backend == "twin_flat" ? Layout::flat_scales : Layout::swizzled_128x4) << tensor.name;
        EXPECT_EQ(tensor.valid.size(), way.backend == "twin_flat" ? 1u : 2u);
        ++found;
      }
    }
    EXPECT_EQ(found, 2) << "of both products' activations";
    const std::vector<std::string>& points = plan.recipe.rounding_points;
    EXPECT_TRUE(std::any_of(points.begin(), points.end(), [](const std::string& s) { return s.find("mxfp8") != s.npos; }));
  }
}

}  // namespace
}  // namespace motet::laws
