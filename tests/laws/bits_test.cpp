// SPDX-License-Identifier: Apache-2.0
// L15 bits are a promise: threads, executors, repetition, batches and the caller's floating-point flags change nothing.
#include <algorithm>
#include <cmath>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "fixture.h"
#include "runtime/layer_impl.h"

namespace motet::laws {
namespace {

TEST(L15, ThreadsChangeNoBit) { hold_everywhere("threads_change_nothing"); }
TEST(L15, InvariantBitsDoNotDependOnTheBatch) { hold_everywhere("batch_changes_nothing_when_invariant"); }

TEST(L15, InvariantBitsDoNotDependOnTheChunk) {
  constexpr std::int64_t kTokens = 7;
  for (const char* shape : {"hidden-2688-shared", "latent-1024-norm", "zero-experts", "intermediate-720-scaled"})
    for (CheckWay way : usable_ways()) {
      if (way.finalize == Finalize::unfinalized) continue;
      way.invariant = true;
      const LayerSpec& spec = check_shape(shape);
      PlanResult whole = plan_way(spec, way, kTokens, machine());
      if (!whole.plan) continue;
      const std::vector<float> x = inputs_of(spec, kTokens);
      const Routing routing = routing_of(spec, kTokens);
      const Hooks hooks{.row = way.finalize == Finalize::hook ? identity_hook : nullptr};
      const auto at_once = create_layer(*whole.plan, weights_of(spec), hooks, nullptr, {.poison = true});
      const std::vector<float> truth = run_given(*at_once, x, routing).output;
      Deployment deployment = whole.plan->deployment;
      for (const std::int64_t chunk_tokens : {3, 1, 6, 7}) {
        if (kSlow && chunk_tokens != 3) break;
        SCOPED_TRACE(std::string(shape) + " by " + way.name() + ", chunk " + std::to_string(chunk_tokens));
        deployment.chunk_tokens = chunk_tokens;
        const auto layer =
            create_layer(plan(spec, deployment, machine()).value(), weights_of(spec), hooks, nullptr, {.poison = true});
        const CheckRun run = run_given(*layer, x, routing);
        ASSERT_TRUE(run.status.ok()) << run.status.text();
        EXPECT_TRUE(same_bits(run.output, truth));
        EXPECT_EQ(layer->stats().tokens, kTokens);
        EXPECT_EQ(layer->stats().rows, at_once->stats().rows);
        EXPECT_EQ(layer->stats().experts_used, at_once->stats().experts_used);
        EXPECT_GE(layer->stats().weight_bytes, at_once->stats().weight_bytes);
        EXPECT_TRUE(std::equal(layer->expert_load(), layer->expert_load() + spec.experts, at_once->expert_load()));
      }
    }
}

/// Runs the pieces backwards, each on a thread number of its own choosing.
class BackwardsExecutor final : public Executor {
 public:
  int threads() const noexcept override { return 2; }
  void run(std::int64_t pieces, void (*body)(void*, std::int64_t, int) noexcept, void* context) noexcept override {
    ++runs;
    for (std::int64_t piece = pieces; piece-- > 0;) body(context, piece, static_cast<int>(piece % 2));
  }
  int runs = 0;
};

TEST(L15, TheOrderOfPiecesOnACallersExecutorChangesNoBit) {
  for (const char* shape : {"hidden-2688-shared", "latent-1024", "zero-experts"}) {
    for (const CheckWay& way : usable_ways()) {
      SCOPED_TRACE(std::string(shape) + " by " + way.name());
      const LayerSpec& spec = check_shape(shape);
      const std::vector<float> x = inputs_of(spec, 9);
      BackwardsExecutor executor;
      const auto own = make_layer(spec, way, 9);
      const auto theirs = Layer::create(plan_way(spec, way, 9, machine()).value(), weights_of(spec), {}, &executor);
      EXPECT_TRUE(same_bits(run_tokens(*own, x, 0, 9).output, run_tokens(*theirs, x, 0, 9).output));
      EXPECT_GT(executor.runs, 0);
    }
  }
}

TEST(L15, AnExecutorWithMoreThreadsThanThePlanIsRefused) {
  const LayerSpec& spec = check_shape("intermediate-704");
  BackwardsExecutor executor;
  EXPECT_EQ(code_of([&] { Layer::create(plan_way(spec, reference_way(), 2, machine()).value(), weights_of(spec), {}, &executor); }),
            ErrorCode::invalid_argument);
}

TEST(L15, PermutedTokensGivePermutedBits) {
  const LayerSpec& spec = check_shape("intermediate-720-scaled");
  constexpr std::int64_t kTokens = 7;
  const std::vector<float> x = inputs_of(spec, kTokens);
  std::vector<float> reversed;
  for (std::int64_t token = kTokens; token-- > 0;)
    reversed.insert(reversed.end(), x.begin() + token * spec.hidden, x.begin() + (token + 1) * spec.hidden);
  for (const CheckWay& way : usable_ways()) {
    SCOPED_TRACE(way.name());
    const auto layer = make_layer(spec, way, kTokens);
    const CheckRun forwards = run_tokens(*layer, x, 0, kTokens), backwards = run_tokens(*layer, reversed, 0, kTokens);
    for (std::int64_t token = 0; token < kTokens; ++token) {
      const auto row = [&](const CheckRun& run, std::int64_t at) {
        return std::vector<float>(run.output.begin() + at * spec.hidden, run.output.begin() + (at + 1) * spec.hidden);
      };
      EXPECT_TRUE(same_bits(row(forwards, token), row(backwards, kTokens - 1 - token))) << token;
    }
  }
}

#if defined(__x86_64__)
TEST(L15, FlushToZeroOfTheCallerChangesNoBitAndComesBack) {
  const LayerSpec& spec = check_shape("intermediate-1856-gated-shared");
  std::vector<float> x = inputs_of(spec, 4);
  for (float& value : x) value *= 0x1p-64f;  // silu(g) * u is near 2^-129, a subnormal, and so are the sums that follow
  for (const CheckWay& way : usable_ways()) {
    SCOPED_TRACE(way.name());
    const auto layer = make_layer(spec, way, 4);
    Routing routing = routing_of(spec, 4);
    const CheckRun expected = run_given(*layer, x, routing);
    bool subnormal = layer->plan().recipe.arithmetic == "bf16_dot";  // an instruction that always flushes, whatever the flags
    for (const float value : expected.output) subnormal = subnormal || std::fpclassify(value) == FP_SUBNORMAL;
    EXPECT_TRUE(subnormal);  // so that flushing would show
    const unsigned state = _mm_getcsr();
    _mm_setcsr(state | 0x8040u);  // flush to zero, denormals are zero
    const CheckRun run = run_given(*layer, x, routing);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(state);
    EXPECT_EQ(after & 0x8040u, 0x8040u);
    EXPECT_TRUE(same_bits(run.output, expected.output));
  }
}
#endif

}  // namespace
}  // namespace motet::laws
