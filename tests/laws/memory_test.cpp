// SPDX-License-Identifier: Apache-2.0
// L16 memory is exact, L17 sizes are 64-bit.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>

#include "fixture.h"
#include "runtime/layer_impl.h"

namespace {
std::atomic<std::int64_t> allocations{0};
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOTET_COUNTS_ALLOCATIONS 1
// Every way the program's own code can take memory: operator new, malloc and its kin through glibc's hooks below, mmap.
extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* malloc(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* old, std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(old, bytes);
}
extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
#endif

namespace motet::laws {
namespace {

TEST(L16, RepetitionShrinkingAndGrowingOnOneWorkspaceChangeNothing) { hold_everywhere("repetition_changes_nothing"); }

#if defined(MOTET_COUNTS_ALLOCATIONS)
TEST(L16, TheCountOfAllocationsCounts) {
  const std::int64_t before = allocations.load();
  ::operator delete(::operator new(8));  // called by name: these may not be left out by the compiler
  void* volatile kept = std::malloc(8);
  std::free(kept);
  munmap(mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
  EXPECT_GE(allocations.load() - before, 3);
}

TEST(L16, ForwardAllocatesNothing) {
  for (const NamedShape& shape : check_shapes()) {
    for (const CheckWay& way : usable_ways()) {
      SCOPED_TRACE(shape.name + " by " + way.name());
      const LayerSpec& spec = shape.spec;
      const auto layer = make_layer(spec, way, 6);
      const std::vector<float> x = inputs_of(spec, 6);
      std::vector<float> output(x.size());
      const ForwardInput input{.hidden_states = {x.data(), DType::f32, 6, spec.hidden}, .router_logits = {}};
      const ForwardOutput result{.output = {output.data(), DType::f32, 6, spec.hidden}};
      ForwardInput wrong = input;
      wrong.hidden_states.cols = 1;
      const std::int64_t before = allocations.load();
      const RunStatus status = layer->forward(input, result);
      const RunStatus refused = layer->forward(wrong, result);
      EXPECT_EQ(allocations.load() - before, 0);
      EXPECT_TRUE(status.ok()) << status.text();
      EXPECT_EQ(refused.code, ErrorCode::wrong_shape);
    }
  }
}
#endif

/// Anonymous bytes of this process.
std::int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("Anonymous:", 0) == 0) return std::atoll(line.c_str() + 10) * 1024;
  return -1;
}

TEST(L16, AnonymousMemoryIsWhatThePlanSays) {
#if !defined(MOTET_COUNTS_ALLOCATIONS)
  GTEST_SKIP() << "sanitizers keep anonymous memory of their own";
#endif
  LayerSpec spec = check_shape("hidden-2880");
  constexpr std::int64_t kTokens = 2048;
  for (const CheckWay& way : usable_ways()) {
    if (way.backend != "cpu" || way.target != usable_ways().front().target)
      continue;  // others would take their time over so many tokens
    SCOPED_TRACE(way.name());
    const auto weights = weights_of(spec);
    const Plan plan = plan_way(spec, way, kTokens, machine()).value();
    const std::vector<float> x = inputs_of(spec, kTokens);
    std::vector<float> output(x.size(), 1.0f);
    const std::int64_t before = anonymous_bytes();
    ASSERT_GE(before, 0);
    const auto layer = Layer::create(plan, weights);
    for (int round = 0; round < 2; ++round) {
      const RunStatus status = layer->forward({.hidden_states = {x.data(), DType::f32, kTokens, spec.hidden}, .router_logits = {}},
                                              {.output = {output.data(), DType::f32, kTokens, spec.hidden}});
      ASSERT_TRUE(status.ok()) << status.text();
    }
    const std::int64_t used = anonymous_bytes() - before, planned = plan.memory.anonymous;
    const std::int64_t allowed = std::max(planned / 20, std::int64_t{8} << 20);  // L16: 5 % or 8 MiB
    EXPECT_GT(planned, std::int64_t{32} << 20);  // so that the plan is not within the allowance of nothing
    EXPECT_LE(std::abs(used - planned), allowed) << "used " << used << ", planned " << planned;
  }
}

TEST(L16, MoreTokensThanPlannedAreNamed) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const auto layer = make_layer(spec, reference_way(), 3);
  const CheckRun run = run_tokens(*layer, inputs_of(spec, 4), 0, 4);
  EXPECT_EQ(run.status.code, ErrorCode::tokens_exceed_plan);
  EXPECT_NE(run.status.text().find("3 tokens"), std::string_view::npos) << run.status.text();
  EXPECT_NE(run.status.text().find("4 were given"), std::string_view::npos) << run.status.text();
  EXPECT_TRUE(run_tokens(*layer, inputs_of(spec, 3), 0, 3).status.ok());  // and nothing is broken afterwards
}

TEST(L16, ChunksNeedTheWorkspaceOfOneAndTakeAsManyTokensAsPlanned) {
  const LayerSpec& spec = check_shape("hidden-2688-shared");
  Deployment deployment = plan_way(spec, reference_way(), 64, machine()).value().deployment;
  deployment.chunk_tokens = 8;
  const Plan made = plan(spec, deployment, machine()).value();
  EXPECT_EQ(made.workspace.bytes, plan_way(spec, reference_way(), 8, machine()).value().workspace.bytes);
  const auto layer = Layer::create(made, weights_of(spec));
  EXPECT_TRUE(run_tokens(*layer, inputs_of(spec, 64), 0, 64).status.ok());
  EXPECT_EQ(run_tokens(*layer, inputs_of(spec, 65), 0, 65).status.code, ErrorCode::tokens_exceed_plan);
}

TEST(L16, AReductionAreaOf8192TokensTimes3072IsSizedAndUsedAtTheStoredWidth) {
  LayerSpec spec = check_shape("hidden-2880");
  spec.top_k = 1;
  const CheckWay way{.backend = "twin_wide", .target = ""};
  const auto layer = make_layer(spec, way, 8192, {}, true);
  ASSERT_EQ(layer->plan().stored(Axis::down_out), 3072);
  EXPECT_GE(layer->plan().area(AreaId::rows)->bytes, std::int64_t{8192} * 3072 * 4);
  // The last tokens alone are live: their rows end where the area would if it were sized by 2880.
  const std::vector<float> x(8192 * 2880, 0.25f);
  Routing routing{.index = std::vector<std::int32_t>(8192, kAbsent), .weights = std::vector<float>(8192, 1.0f)};
  for (std::size_t token = 8184; token < 8192; ++token) routing.index[token] = static_cast<std::int32_t>(token % 4);
  const CheckRun run = run_given(*layer, x, routing);
  ASSERT_TRUE(run.status.ok()) << run.status.text();
  const std::vector<float> last_x(x.end() - 8 * 2880, x.end()), last_output(run.output.end() - 8 * 2880, run.output.end());
  const Routing last{.index = {routing.index.end() - 8, routing.index.end()}, .weights = std::vector<float>(8, 1.0f)};
  EXPECT_LE(distance(last_output, oracle(spec, *weights_of(spec), last_x, last)), layer->plan().recipe.error_bound);
}

TEST(L17, AWorkspaceBeyond32BitsIsPlannedExactly) {
  LayerSpec spec = check_shape("hidden-2880");
  const std::int64_t tokens = 600000;  // tokens * top_k * hidden = 3.5e9 elements
  Environment large = machine();
  large.memory_bytes = std::int64_t{1} << 44;
  const Plan plan = plan_way(spec, reference_way(), tokens, large).value();
  EXPECT_EQ(plan.max_rows(), 1200000);
  EXPECT_EQ(plan.area(AreaId::rows)->bytes, std::int64_t{1200000} * 2880 * 4);
  EXPECT_EQ(plan.memory.workspace, plan.workspace.bytes);
  EXPECT_GT(plan.workspace.bytes, std::int64_t{1} << 33);
}

TEST(L17, MoreRowsThanTheirMapCanNumberAreRefused) {
  LayerSpec spec = check_shape("intermediate-704");
  Environment large = machine();
  large.memory_bytes = std::int64_t{1} << 52;
  const PlanResult result = plan_way(spec, reference_way(), std::int64_t{1} << 29, large);  // times top_k 8 = 2^32 rows
  ASSERT_FALSE(result.plan);
  ASSERT_EQ(result.refusals.size(), 1u);
  EXPECT_EQ(result.refusals.front().code, "too_many_rows");
  EXPECT_TRUE(plan_way(spec, reference_way(), (std::int64_t{1} << 28) - 1, large).plan);  // times 8: the last that 31 bits number
}

}  // namespace
}  // namespace motet::laws
