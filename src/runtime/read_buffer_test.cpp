// SPDX-License-Identifier: Apache-2.0
#include "runtime/read_buffer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/probe.h"
#include "motet/machine.h"

namespace motet {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Two threads in name that take `seconds` for each round of pieces, as fresh pages of a virtual machine do.
class SlowExecutor final : public Executor {
 public:
  explicit SlowExecutor(double seconds) : seconds_(seconds) {}
  int threads() const noexcept override { return 2; }
  void run(std::int64_t pieces, void (*body)(void*, std::int64_t, int) noexcept, void* context) noexcept override {
    ++rounds;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(context, piece, 0);
  }
  int rounds = 0;

 private:
  double seconds_;
};

constexpr ReadBuffer::Wish kWish{.bytes = 8 * kReadPiece, .least = 4 * kReadPiece};

TEST(ReadBuffer, StopsAtTheDeadlineAndGoesOnNextTime) {
  ReadBuffer buffer(kWish);
  SlowExecutor slow(0.02);
  const double begin = now();
  buffer.touch(slow, begin + 0.05);
  EXPECT_GE(slow.rounds, 1);
  EXPECT_LE(slow.rounds, 2) << "a round that would not end in time is not begun";
  EXPECT_EQ(buffer.readable(), 0) << "a cache would answer for so little";
  SlowExecutor fast(0);
  buffer.touch(fast, now() + 60);
  EXPECT_EQ(buffer.readable(), kWish.bytes);
  EXPECT_EQ(fast.rounds + slow.rounds, kWish.bytes / (2 << 20)) << "no page is written twice";
}

TEST(ReadBuffer, AnExpiredDeadlineTouchesNothing) {
  ReadBuffer buffer(kWish);
  SlowExecutor any(0);
  buffer.touch(any, now() - 1);
  EXPECT_EQ(any.rounds, 0);
}

TEST(ReadBuffer, WithoutRoomBeyondTheCachesThereIsNone) {
  const std::int64_t cache = std::int64_t{32} << 20;
  EXPECT_EQ(read_buffer_wish(cache, std::int64_t{400} << 20, 4096).bytes, 0);
  const ReadBuffer::Wish wish = read_buffer_wish(cache, std::int64_t{16} << 30, 4096);
  EXPECT_GE(wish.bytes, 4 * cache);
  EXPECT_GE(wish.least, 2 * cache);
}

TEST(ReadBuffer, IsBoundedWhereTheCacheIsThatOfASharedHost) {
  const std::int64_t cache = std::int64_t{480} << 20;
  const ReadBuffer::Wish wish = read_buffer_wish(cache, std::int64_t{16} << 30, 4096);
  EXPECT_EQ(wish.bytes, std::int64_t{512} << 20);
  EXPECT_EQ(wish.least, wish.bytes);
  EXPECT_TRUE(may_be_cached(wish.bytes, cache));
  EXPECT_FALSE(may_be_cached(read_buffer_wish(std::int64_t{32} << 20, std::int64_t{16} << 30, 4096).least, std::int64_t{32} << 20));
}

TEST(RateProbe, ReadsGivenMemoryAtOnceAndSaysHowMuch) {
  const auto probe = RateProbe::create(2);
  std::vector<std::byte> resident(3'000'000, std::byte{1});
  const ByteSpan half{resident.data() + 3, 2'000'000}, rest{resident.data() + 1'500'000, 1'500'000};  // they overlap
  const MeasuredRates rates = probe->measure({.threads = 2, .budget_seconds = 0.02, .compute = false, .resident = {rest, half}});
  EXPECT_GT(rates.read_bytes_per_second, 0);
  EXPECT_LE(rates.read_bytes, 3'000'000 - 3) << "bytes were counted twice";
  EXPECT_GT(rates.read_bytes, 3'000'000 - 3 - 64 - 1024);
  EXPECT_EQ(rates.f32_flops, 0);
  const MeasuredRates none =
      probe->measure({.threads = 2, .budget_seconds = 0.02, .compute = false, .resident = {{resident.data(), 9}}});
  EXPECT_EQ(none.read_bytes_per_second, 0) << "there is nothing to read";
  EXPECT_EQ(none.read_bytes, 0);
}

TEST(RateProbe, EndsByItsBudget) {
  const auto probe = RateProbe::create(2);
  double fastest = 1e9;
  for (int i = 0; i < 5; ++i) {  // other programs may delay some
    const double begin = now();
    probe->measure({.threads = 2, .budget_seconds = 0.3});
    fastest = std::min(fastest, now() - begin);
  }
  EXPECT_LE(fastest, 0.33);
}

}  // namespace
}  // namespace motet
