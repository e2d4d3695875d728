// SPDX-License-Identifier: Apache-2.0
#include "kernels/probe.h"

#include <gtest/gtest.h>

#include "base/arena.h"
#include "base/thread_pool.h"

namespace motet {
namespace {

constexpr DotKind kKinds[] = {DotKind::f32_fma, DotKind::bf16_dot, DotKind::int16_dot, DotKind::int8_dot};

TEST(Probe, ReportsZeroForInstructionsThatTheProcessorLacks) {
  ThreadPool pool(1);
  const CpuFeatures none;
  EXPECT_GT(measure_dot_rate(pool, DotKind::f32_fma, none, 0.002), 1e8);
  for (const DotKind kind : {DotKind::bf16_dot, DotKind::int16_dot, DotKind::int8_dot})
    EXPECT_EQ(measure_dot_rate(pool, kind, none, 0.002), 0) << name_of(kind);
  EXPECT_FALSE(bf16_dot_is_faster(none));
}

TEST(Probe, RatesStandInTheRatioOfTheirWidths) {
  const CpuFeatures& cpu = this_cpu();
  if (!cpu.avx512vnni) GTEST_SKIP() << "AVX-512 VNNI";
  ThreadPool pool(1);
  double rates[4];
  for (const DotKind kind : kKinds) rates[static_cast<int>(kind)] = measure_dot_rate(pool, kind, cpu, 0.02);
  // The int8 dot does twice the work of the int16 dot at the same issue rate on every processor that has them.
  const double ratio = rates[3] / rates[2];
  EXPECT_GT(ratio, 1.5) << rates[2] << " " << rates[3];
  EXPECT_LT(ratio, 2.7) << rates[2] << " " << rates[3];
  for (const double rate : rates) RecordProperty("rate", std::to_string(rate));
}

TEST(Probe, ReadsEveryWidthFromWrittenMemory) {
  Arena arena(4 * kReadPiece, "a probe");
  arena.touch();
  ThreadPool pool(2);
  CpuFeatures narrow = this_cpu();
  narrow.avx512f = false;
  CpuFeatures none;
  for (const CpuFeatures& cpu : {this_cpu(), narrow, none})
    EXPECT_GT(measure_read_rate(pool, arena.data(), arena.bytes(), cpu, 0.005), 1e8);
}

}  // namespace
}  // namespace motet
