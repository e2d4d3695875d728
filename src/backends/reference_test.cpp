// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/testing.h"
#include "base/thread_pool.h"

namespace motet::testing {
namespace {

// Decodes by hand: nothing of the library takes part in the truth below.
double bf16_at(const std::byte* address) {
  std::uint16_t code;
  std::memcpy(&code, address, 2);
  const std::uint32_t bits = static_cast<std::uint32_t>(code) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
double weight(const WeightView& view, std::int64_t n, std::int64_t k) {
  return bf16_at(view.codes + n * view.row_stride + k * view.col_stride);
}
double bias(const BiasView& view, std::int64_t n) { return view.data == nullptr ? 0 : bf16_at(view.data + n * view.stride); }

std::vector<double> naive(const ExpertView& expert, const float* x) {
  std::vector<double> act, out;
  for (std::int64_t n = 0; n < expert.up.rows; ++n) {
    double gate = bias(expert.gate_bias, n), up = bias(expert.up_bias, n);
    for (std::int64_t k = 0; k < expert.up.cols; ++k)
      gate += weight(expert.gate, n, k) * x[k], up += weight(expert.up, n, k) * x[k];
    act.push_back(gate / (1 + std::exp(-gate)) * up);
  }
  for (std::int64_t n = 0; n < expert.down.rows; ++n) {
    double sum = bias(expert.down_bias, n);
    for (std::int64_t k = 0; k < expert.down.cols; ++k) sum += weight(expert.down, n, k) * act[static_cast<std::size_t>(k)];
    out.push_back(sum);
  }
  return out;
}

class ReferenceLayouts : public ::testing::TestWithParam<std::tuple<GateUpOrder, bool>> {};

TEST_P(ReferenceLayouts, EqualANaiveTripleLoop) {
  LayerSpec spec = layer_spec("bf16");
  spec.hidden = 97;
  spec.intermediate = 41;
  spec.gate_up_order = std::get<0>(GetParam());
  spec.gate_up = projection("bf16", std::get<1>(GetParam()), true);
  spec.down = projection("bf16", std::get<1>(GetParam()), true);
  const auto weights = make_synthetic_weights(spec, 3);
  ThreadPool pool(2);
  const Rows rows{{0, 1, 9, 40, 3, 0}};
  const std::vector<float> x = inputs(rows.total(), spec.hidden);
  const std::vector<float> got = runner(spec, weights, "reference").experts(x, rows, pool);
  std::int64_t row = 0;
  for (std::size_t slot = 0; slot < rows.counts.size(); ++slot) {
    for (std::int64_t i = 0; i < rows.counts[slot]; ++i, ++row) {
      const std::vector<double> truth = naive(weights->experts[slot], x.data() + row * spec.hidden);
      for (std::int64_t n = 0; n < spec.hidden; ++n) {
        const double value = truth[static_cast<std::size_t>(n)];
        // One rounding to fp32; what double sums lose beside it is far below.
        ASSERT_NEAR(got[static_cast<std::size_t>(row * spec.hidden + n)], value, std::abs(value) * 0x1p-24 + 1e-13)
            << "row " << row << ", element " << n;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, ReferenceLayouts,
                         ::testing::Combine(::testing::Values(GateUpOrder::separate, GateUpOrder::halves, GateUpOrder::interleaved),
                                            ::testing::Bool()));

TEST(Reference, OneExpertIsADenseFeedForward) {
  LayerSpec spec = layer_spec("bf16");
  spec.experts = 1, spec.top_k = 1;
  spec.shared = {.intermediate = spec.intermediate,
                 .gate = false,
                 .activation = spec.activation,
                 .gate_up_order = spec.gate_up_order,
                 .gate_up = spec.gate_up,
                 .down = spec.down};
  const auto weights = make_synthetic_weights(spec, 4);
  weights->shared = weights->experts[0];
  Runner run = runner(spec, weights, "reference");
  ThreadPool pool(2);
  const std::vector<float> x = inputs(5, spec.hidden);
  EXPECT_EQ(run.experts(x, {{5}}, pool), run.shared(x, 5, pool));
}

TEST(Reference, PermutedTokensPermuteTheResult) {
  const LayerSpec spec = layer_spec("bf16");
  Runner run = runner(spec, make_synthetic_weights(spec, 5), "reference");
  ThreadPool pool(2);
  std::vector<float> x = inputs(40, spec.hidden);
  const Rows rows{{0, 0, 40, 0, 0, 0}};
  const std::vector<float> straight = run.experts(x, rows, pool);
  std::vector<float> reversed;
  for (std::int64_t r = 39; r >= 0; --r)
    reversed.insert(reversed.end(), x.begin() + r * spec.hidden, x.begin() + (r + 1) * spec.hidden);
  const std::vector<float> got = run.experts(reversed, rows, pool);
  for (std::int64_t r = 0; r < 40; ++r) {
    ASSERT_TRUE(
        std::equal(got.begin() + r * spec.hidden, got.begin() + (r + 1) * spec.hidden, straight.begin() + (39 - r) * spec.hidden))
        << "row " << r;
  }
}

TEST(Reference, RoundsLogitsOnce) {
  const LayerSpec spec = layer_spec("bf16");
  const auto weights = make_synthetic_weights(spec, 6);
  ThreadPool pool(2);
  const std::vector<float> x = inputs(33, spec.hidden);
  const std::vector<float> logits = runner(spec, weights, "reference").router(x, 33, pool);
  for (std::int64_t t = 0; t < 33; ++t) {
    for (std::int64_t e = 0; e < spec.experts; ++e) {
      double sum = 0;
      for (std::int64_t k = 0; k < spec.hidden; ++k)
        sum += weight(weights->router, e, k) * x[static_cast<std::size_t>(t * spec.hidden + k)];
      ASSERT_EQ(logits[static_cast<std::size_t>(t * spec.experts + e)], static_cast<float>(sum));
    }
  }
}

LayerSpec everything(const std::string& format) {
  LayerSpec spec = layer_spec(format);
  spec.latent = 160;
  spec.latent_in = projection(format);
  spec.latent_out = projection(format);
  spec.activation = activation(ActivationKind::relu2);
  spec.shared = {.intermediate = 192,
                 .gate = false,
                 .activation = activation(ActivationKind::silu),
                 .gate_up_order = GateUpOrder::halves,
                 .gate_up = projection(format),
                 .down = projection(format)};
  return spec;
}

class Twins : public ::testing::TestWithParam<const char*> {};

TEST_P(Twins, AgreeWithTheReference) {
  const LayerSpec spec = everything("bf16");
  const auto weights = make_synthetic_weights(spec, 8);
  Runner twin = runner(spec, weights, GetParam()), reference = runner(spec, weights, "reference");
  ThreadPool pool(2);
  const Rows rows{{0, 1, 3, 4, 9, 40}};
  const std::vector<float> latent = inputs(rows.total(), spec.latent), hidden = inputs(7, spec.hidden);
  const double tolerance = 4 * 0x1p-24;  // intermediates and results rounded to fp32
  EXPECT_LT(relative_error(twin.experts(latent, rows, pool), reference.experts(latent, rows, pool)), tolerance);
  EXPECT_LT(relative_error(twin.shared(hidden, 7, pool), reference.shared(hidden, 7, pool)), tolerance);
  EXPECT_EQ(twin.latent_in(hidden, 7, pool), reference.latent_in(hidden, 7, pool));
  EXPECT_EQ(twin.latent_out(latent, 7, pool), reference.latent_out(latent, 7, pool));
  EXPECT_EQ(twin.router(hidden, 7, pool), reference.router(hidden, 7, pool));
}

TEST_P(Twins, L4_PoisonThePaddingOfRows) {
  const LayerSpec spec = layer_spec("bf16");
  Runner twin = runner(spec, make_synthetic_weights(spec, 9), GetParam());
  ThreadPool pool(1);
  twin.experts(inputs(3, spec.hidden), {{0, 3, 0, 0, 0, 0}}, pool);
  const std::int64_t stored = twin.plan().stored(Axis::down_out);
  for (std::int64_t i = 0; i < 3 * stored; ++i)
    ASSERT_EQ(std::isnan(twin.stored_rows[static_cast<std::size_t>(i)]), i % stored >= spec.hidden) << i;
}
INSTANTIATE_TEST_SUITE_P(All, Twins, ::testing::Values("twin_wide", "twin_aligned", "twin_finalized"));

TEST(TwinsDeathTest, L4_AbortOnPaddingThatIsNotZero) {
  const LayerSpec spec = layer_spec("bf16");
  Runner twin = runner(spec, make_synthetic_weights(spec, 9), "twin_wide");
  twin.spoil_padding = 1;
  EXPECT_DEATH(
      {
        ThreadPool pool(1);
        twin.experts(inputs(3, spec.hidden), {{0, 3, 0, 0, 0, 0}}, pool);
      },
      "element 288 of 512 stored is not zero");
}

TEST(Twins, StoreWhatKnownKernelsStore) {
  LayerSpec spec = layer_spec("bf16");
  spec.hidden = 2880, spec.intermediate = 2880;
  EXPECT_EQ(plan_of(spec, "twin_wide").stored(Axis::down_out), 3072);
  EXPECT_EQ(plan_of(spec, "twin_aligned").stored(Axis::down_out), 2944);
  EXPECT_EQ(plan_of(spec, "reference").stored(Axis::down_out), 2880);
  spec.hidden = 2688;
  EXPECT_EQ(plan_of(spec, "twin_wide").stored(Axis::hidden), 2816);
}

TEST(Twins, FinalizedOneRefusesTheHookByName) {
  for (const Finalize finalize : {Finalize::hook, Finalize::unfinalized}) {
    Deployment deployment;
    deployment.wishes.backend = "twin_finalized";
    deployment.wishes.finalize = finalize;
    const PlanResult result = plan_with(layer_spec("bf16"), deployment, environment(), catalog());
    ASSERT_FALSE(result.plan.has_value());
    EXPECT_EQ(result.refusals.front().code, "backend_finalizes_itself");
  }
}

class EveryBackend : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryBackend, NamesTheFirstFieldThatDiffersFromThePlan) {
  const LayerSpec spec = layer_spec("bf16");
  LayerSpec other = spec;
  other.gate_up_order = GateUpOrder::halves;
  other.down.bias = true;
  try {
    runner(spec, make_synthetic_weights(other, 1), GetParam());
    FAIL() << "weights of another layer were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::wrong_shape);
    EXPECT_NE(std::string(error.what()).find("gate_up_order"), std::string::npos) << error.what();
  }
}

TEST_P(EveryBackend, TakesItsRanksPartOfTheWeightsOnly) {
  const LayerSpec spec = layer_spec("bf16");
  Plan plan = plan_of(spec, GetParam());
  plan.ranks[0].expert_count = spec.experts - 1;
  try {
    Runner(plan, make_synthetic_weights(spec, 1));
    FAIL() << "weights of another rank were prepared";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::wrong_shape);
    EXPECT_NE(std::string(error.what()).find("experts"), std::string::npos) << error.what();
  }
}

TEST_P(EveryBackend, PacksWeightsOrRefusesToByName) {
  Deployment deployment;
  deployment.wishes.residence = Residence::packed;
  deployment.wishes.arithmetic = Arithmetic::fast;  // which every backend keeps
  const LayerSpec spec = layer_spec("bf16");
  const Environment machine = environment();
  const auto refusal = find_backend(GetParam())
                           ->traits.supports({.spec = spec, .deployment = deployment, .environment = machine, .target = "generic"});
  EXPECT_EQ(refusal ? refusal->code : "packs", GetParam() == std::string("cpu") ? "packs" : "residence_not_built");
}

TEST_P(EveryBackend, PreparesAsManyBytesAsPlanned) {
  LayerSpec spec = everything("bf16");
  spec.down.bias = spec.gate_up.bias = spec.shared.down.bias = spec.shared.gate_up.bias = true;
  Runner run = runner(spec, make_synthetic_weights(spec, 1), GetParam());
  EXPECT_EQ(run.backend().prepared_bytes(), run.plan().memory.prepared);
}
INSTANTIATE_TEST_SUITE_P(All, EveryBackend,
                         ::testing::Values("cpu", "reference", "twin_wide", "twin_aligned", "twin_finalized", "twin_flat",
                                           "twin_swizzled"));

TEST(Backends, AreListedInSelectionOrder) {
  std::vector<std::string_view> names;
  for (const Backend* backend : all_backends()) names.push_back(backend->traits.name);
  EXPECT_EQ(names, (std::vector<std::string_view>{"cpu", "reference", "twin_wide", "twin_aligned", "twin_finalized", "twin_flat",
                                                  "twin_swizzled"}));
  EXPECT_EQ(find_backend("cuda"), nullptr);
}

}  // namespace
}  // namespace motet::testing
