// SPDX-License-Identifier: Apache-2.0
#include "kernels/probe.h"

#include <gtest/gtest.h>

#include "base/arena.h"
#include "base/thread_pool.h"

namespace motet {
namespace {

constexpr DotKind kKinds[] = {DotKind::f32_fma, DotKind::bf16_dot, DotKind::bf16_tile, DotKind::int16_dot, DotKind::int8_dot};

TEST(Probe, ReportsZeroForInstructionsThatTheProcessorLacks) {
  ThreadPool pool(1);
  const CpuFeatures none;
  EXPECT_GT(measure_dot_rate(pool, DotKind::f32_fma, none, 0.002), 1e8);
  for (const DotKind kind : {DotKind::bf16_dot, DotKind::bf16_tile, DotKind::int16_dot, DotKind::int8_dot})
    EXPECT_EQ(measure_dot_rate(pool, kind, none, 0.002), 0) << name_of(kind);
  EXPECT_FALSE(bf16_dot_is_faster(none));
}

TEST(Probe, RatesStandInTheRatioOfTheirWidths) {
  const CpuFeatures& cpu = this_cpu();
  if (!cpu.avx512vnni) GTEST_SKIP() << "AVX-512 VNNI";
  ThreadPool pool(1);
  double rates[std::size(kKinds)];
  for (const DotKind kind : kKinds) rates[static_cast<int>(kind)] = measure_dot_rate(pool, kind, cpu, 0.02);
  // The int8 dot does twice the work of the int16 dot at the same issue rate on every processor that has them.
  const double int16 = rates[static_cast<int>(DotKind::int16_dot)], int8 = rates[static_cast<int>(DotKind::int8_dot)];
  EXPECT_GT(int8 / int16, 1.5) << int16 << " " << int8;
  EXPECT_LT(int8 / int16, 2.7) << int16 << " " << int8;
  for (const double rate : rates) RecordProperty("rate", std::to_string(rate));
}

TEST(Probe, ReadsEveryWidthFromWrittenMemory) {
  Arena arena(4 * kReadPiece, "a probe");
  arena.touch();
  ThreadPool pool(2);
  CpuFeatures narrow = this_cpu();
  narrow.avx512f = false;
  CpuFeatures none;
  const ByteSpan whole{arena.data(), arena.bytes()}, small{arena.data() + 1, 100'000};
  for (const CpuFeatures& cpu : {this_cpu(), narrow, none}) {
    EXPECT_GT(measure_read_rate(pool, read_pieces({&whole, 1}, 2), cpu, 0.005), 1e8);
    EXPECT_GT(measure_read_rate(pool, read_pieces({&small, 1}, 2), cpu, 0.005), 1e8);
  }
}

TEST(Probe, PiecesLieInTheirSpansAlignedAndWholeAndLeaveOutEndsOnly) {
  alignas(64) static std::byte memory[1 << 20];
  for (const std::int64_t bytes : {0, 1, 1023, 1024, 1087, 5000, 300'000, 1'000'000}) {
    for (const std::int64_t offset : {0, 1, 63, 64, 100}) {
      const ByteSpan spans[] = {{memory + offset, bytes}, {memory + (1 << 20) - 4096, bytes > 0 ? 4096 : 0}};
      std::int64_t read = 0;
      const std::byte* end = nullptr;
      for (const ByteSpan& piece : read_pieces(spans, 2)) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data) % 64, 0u);
        EXPECT_TRUE(piece.bytes > 0 && piece.bytes % kReadUnit == 0 && piece.bytes <= kReadPiece) << piece.bytes;
        EXPECT_GE(piece.data, end) << "pieces overlap";
        end = piece.data + piece.bytes;
        const bool first = end <= memory + offset + bytes;
        EXPECT_TRUE(first ? piece.data >= memory + offset : piece.data >= spans[1].data) << bytes << " at " << offset;
        read += piece.bytes;
      }
      EXPECT_LE(read, spans[0].bytes + spans[1].bytes);
      EXPECT_GT(read, spans[0].bytes + spans[1].bytes - 64 - 2 * kReadUnit - 1) << bytes << " at " << offset;
    }
  }
}

TEST(Probe, PiecesAreManyEnoughToShareAndNoLargerThanARoundCanTake) {
  alignas(64) static std::byte memory[1];
  const ByteSpan large{memory, std::int64_t{1} << 30};  // cut, not read
  const std::vector<ByteSpan> pieces = read_pieces({&large, 1}, 4);
  EXPECT_EQ(pieces.size(), 256u);
  const ByteSpan layer{memory, std::int64_t{5} << 20};
  EXPECT_GE(read_pieces({&layer, 1}, 4).size(), 32u);
}

}  // namespace
}  // namespace motet
