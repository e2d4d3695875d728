// SPDX-License-Identifier: Apache-2.0
#include "kernels/probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"
#include "base/fp_state.h"
#include "base/math.h"
#if defined(__x86_64__)
#define MOTET_TARGET probe
#include "kernels/tile_unit.h"
#endif

namespace motet {
namespace {

// ---------------------------------------------------------------- register-only loops

#define MOTET_TWELVE(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)
#define MOTET_SIXTEEN(M) MOTET_TWELVE(M) M(12) M(13) M(14) M(15)

/// NAME(iterations): EACH lists the independent sums, STEP(i) advances sum a##i, REGISTER is the asm constraint that hides the
/// sums' equal beginnings from the compiler (it would merge them into one) and keeps their ends alive.
#define MOTET_RATE_LOOP(NAME, TARGET, VECTOR, EACH, STEP, REGISTER, X, Y)              \
  [[gnu::target(TARGET), gnu::noinline]] void NAME(std::int64_t iterations) noexcept { \
    const auto x = X;                                                                  \
    const auto y = Y;                                                                  \
    EACH(MOTET_DECLARE_##VECTOR)                                                       \
    EACH(MOTET_HIDE_##REGISTER)                                                        \
    for (; iterations > 0; --iterations) {                                             \
      EACH(STEP)                                                                       \
    }                                                                                  \
    EACH(MOTET_KEEP_##REGISTER)                                                        \
  }

#if defined(__x86_64__)
#define MOTET_DECLARE_ps512(i) __m512 a##i = _mm512_setzero_ps();
#define MOTET_DECLARE_si512(i) __m512i a##i = _mm512_setzero_si512();
#define MOTET_DECLARE_ps256(i) __m256 a##i = _mm256_setzero_ps();
#define MOTET_DECLARE_ps128(i) __m128 a##i = _mm_setzero_ps();
#define MOTET_HIDE_v(i) asm volatile("" : "+v"(a##i));
#define MOTET_HIDE_x(i) asm volatile("" : "+x"(a##i));
#define MOTET_KEEP_v(i) asm volatile("" ::"v"(a##i));
#define MOTET_KEEP_x(i) asm volatile("" ::"x"(a##i));

#define MOTET_FMA512(i) a##i = _mm512_fmadd_ps(x, y, a##i);
#define MOTET_BF16(i) a##i = _mm512_dpbf16_ps(a##i, x, y);
#define MOTET_INT16(i) a##i = _mm512_dpwssd_epi32(a##i, x, y);
#define MOTET_INT8(i) a##i = _mm512_dpbusd_epi32(a##i, x, y);
#define MOTET_FMA256(i) a##i = _mm256_fmadd_ps(x, y, a##i);
#define MOTET_MULADD128(i) a##i = _mm_add_ps(a##i, _mm_mul_ps(x, y2));

MOTET_RATE_LOOP(loop_f32_512, "avx512f", ps512, MOTET_SIXTEEN, MOTET_FMA512, v, _mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f))
MOTET_RATE_LOOP(loop_bf16_512, "avx512f,avx512bf16", ps512, MOTET_SIXTEEN, MOTET_BF16, v,
                reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F80)), reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F00)))
MOTET_RATE_LOOP(loop_int16_512, "avx512f,avx512vnni", si512, MOTET_SIXTEEN, MOTET_INT16, v, _mm512_set1_epi32(0x00030005),
                _mm512_set1_epi32(0x00070001))
MOTET_RATE_LOOP(loop_int8_512, "avx512f,avx512vnni", si512, MOTET_SIXTEEN, MOTET_INT8, v, _mm512_set1_epi32(0x03010502),
                _mm512_set1_epi32(0x01020304))
MOTET_RATE_LOOP(loop_f32_256, "avx2,fma", ps256, MOTET_TWELVE, MOTET_FMA256, x, _mm256_set1_ps(0.5f), _mm256_set1_ps(0.25f))

/// Four tiles of sums, two and two operands of zeros: the unit's time does not depend on values.
[[gnu::noinline]] void loop_bf16_tile(std::int64_t iterations) noexcept {
  probe::TileConfig config;
  for (int t = 0; t < 8; ++t) config.set(t, 16, 64);
  probe::TileUnit tiles;
  tiles.configure(config);
  for (; iterations > 0; --iterations) {
    tiles.dot<0, 4, 6>();
    tiles.dot<1, 4, 7>();
    tiles.dot<2, 5, 6>();
    tiles.dot<3, 5, 7>();
  }
  tiles.release();
}

/// SSE has no FMA: a multiplication and an addition each. The product is hidden from the compiler, which would take it out of the
/// loop.
[[gnu::noinline]] void loop_f32_128(std::int64_t iterations) noexcept {
  const __m128 x = _mm_set1_ps(0.5f);
  __m128 y2 = _mm_set1_ps(0.25f);
  MOTET_TWELVE(MOTET_DECLARE_ps128)
  MOTET_TWELVE(MOTET_HIDE_x)
  for (; iterations > 0; --iterations) {
#define MOTET_HIDDEN_STEP(i)   \
  asm volatile("" : "+x"(y2)); \
  MOTET_MULADD128(i)
    MOTET_TWELVE(MOTET_HIDDEN_STEP)
  }
  MOTET_TWELVE(MOTET_KEEP_x)
}
#else
[[gnu::noinline]] void loop_f32_128(std::int64_t iterations) noexcept {
  float sums[48] = {};
  float x = 0.5f;
  for (; iterations > 0; --iterations) {
    asm volatile("" : "+w"(x));
    for (float& sum : sums) sum = __builtin_fmaf(x, x, sum);
  }
  asm volatile("" ::"r"(sums) : "memory");
}
#endif

struct RateLoop {
  void (*run)(std::int64_t iterations) noexcept = nullptr;
  double operations = 0;  // multiplications plus additions of one iteration
};

RateLoop loop_of(DotKind kind, const CpuFeatures& cpu) noexcept {
#if defined(__x86_64__)
  constexpr double kLanes = 16, kSums = 16;
  switch (kind) {
    case DotKind::f32_fma:
      if (cpu.avx512f) return {loop_f32_512, kSums * kLanes * 2};
      if (cpu.avx2 && cpu.fma) return {loop_f32_256, 12 * 8 * 2};
      return {loop_f32_128, 12 * 4 * 2};
    case DotKind::bf16_dot:
      if (cpu.avx512f && cpu.avx512bf16) return {loop_bf16_512, kSums * kLanes * 4};
      return {};
    case DotKind::bf16_tile:
      if (cpu.amx_tile && cpu.amx_bf16) return {loop_bf16_tile, 4 * 16 * 16 * 32 * 2};
      return {};
    case DotKind::int16_dot:
      if (cpu.avx512f && cpu.avx512vnni) return {loop_int16_512, kSums * kLanes * 4};
      return {};
    case DotKind::int8_dot:
      if (cpu.avx512f && cpu.avx512vnni) return {loop_int8_512, kSums * kLanes * 8};
      return {};
  }
  return {};
#else
  (void)cpu;
  return kind == DotKind::f32_fma ? RateLoop{loop_f32_128, 48 * 2} : RateLoop{};
#endif
}

// ---------------------------------------------------------------- reads

#if defined(__x86_64__)
/// Loads every byte of `bytes` (a multiple of 1024) from four places at once.
[[gnu::target("avx512f"), gnu::noinline]] void read_512(const std::byte* data, std::int64_t bytes) noexcept {
  const std::int64_t stream = bytes / 4;
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (std::int64_t at = 0; at < stream; at += 128) {
    const auto load = [&](std::int64_t place) __attribute__((target("avx512f"), always_inline)) {
      return _mm512_load_si512(data + place + at);
    };
    a = _mm512_or_si512(a, _mm512_or_si512(load(0), load(64)));
    b = _mm512_or_si512(b, _mm512_or_si512(load(stream), load(stream + 64)));
    c = _mm512_or_si512(c, _mm512_or_si512(load(2 * stream), load(2 * stream + 64)));
    d = _mm512_or_si512(d, _mm512_or_si512(load(3 * stream), load(3 * stream + 64)));
  }
  asm volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d));
}
[[gnu::target("avx2"), gnu::noinline]] void read_256(const std::byte* data, std::int64_t bytes) noexcept {
  const std::int64_t stream = bytes / 4;
  __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::int64_t at = 0; at < stream; at += 64)
    for (int s = 0; s < 4; ++s) {
      const auto* const line = reinterpret_cast<const __m256i*>(data + s * stream + at);
      sums[s] = _mm256_or_si256(sums[s], _mm256_or_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  asm volatile("" ::"x"(sums[0]), "x"(sums[1]), "x"(sums[2]), "x"(sums[3]));
}
#endif
[[gnu::noinline]] void read_64(const std::byte* data, std::int64_t bytes) noexcept {
  const std::int64_t words = bytes / 4 / 8;
  const auto* const first = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t sums[4] = {};
  for (std::int64_t at = 0; at < words; ++at)
    for (int s = 0; s < 4; ++s) sums[s] |= first[s * words + at];
  asm volatile("" ::"r"(sums[0]), "r"(sums[1]), "r"(sums[2]), "r"(sums[3]));
}

using Reader = void (*)(const std::byte*, std::int64_t) noexcept;
Reader reader_of(const CpuFeatures& cpu) noexcept {
#if defined(__x86_64__)
  if (cpu.avx512f) return read_512;
  if (cpu.avx2) return read_256;
#endif
  (void)cpu;
  return read_64;
}

// ---------------------------------------------------------------- rounds

double now() noexcept { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct RateWork {
  void (*loop)(std::int64_t) noexcept;
  std::int64_t iterations;
};
/// `count` pieces from `first` on, round and round; thread t reads every threads-th of them.
struct ReadWork {
  Reader read;
  std::span<const ByteSpan> pieces;
  std::size_t first, count, threads;
};

}  // namespace

std::string_view name_of(DotKind kind) noexcept {
  switch (kind) {
    case DotKind::f32_fma:
      return "f32_fma";
    case DotKind::bf16_dot:
      return "bf16_dot";
    case DotKind::bf16_tile:
      return "bf16_tile";
    case DotKind::int16_dot:
      return "int16_dot";
    case DotKind::int8_dot:
      return "int8_dot";
  }
  return "";
}

double measure_dot_rate(Executor& executor, DotKind kind, const CpuFeatures& cpu, double seconds) {
  const RateLoop loop = loop_of(kind, cpu);
  if (loop.run == nullptr) return 0;
  constexpr int kPiecesPerThread = 8;  // so that a thread the system took away delays the round by an eighth only
  const std::int64_t pieces = std::int64_t{kPiecesPerThread} * executor.threads();
  RateWork work{loop.run, 1000};
  const auto round = [&] {
    executor.run(
        pieces,
        [](void* context, std::int64_t, int) noexcept {
          const auto& mine = *static_cast<const RateWork*>(context);
          mine.loop(mine.iterations);
        },
        &work);
  };
  const auto timed_round = [&] {
    const double start = now();
    round();
    return now() - start;
  };
  const double begin = now();
  const double wanted =
      std::min(seconds / 8, 5e-4);  // of one round: shorter than a time slice, so that some rounds run undisturbed
  for (int i = 0; i < 12 && std::min(timed_round(), timed_round()) < wanted / 2; ++i) work.iterations *= 2;
  double fastest = timed_round();
  for (int count = 0; count < 3 || now() - begin < seconds; ++count) fastest = std::min(fastest, timed_round());
  return loop.operations * static_cast<double>(work.iterations) * static_cast<double>(pieces) / fastest;
}

std::vector<ByteSpan> read_pieces(std::span<const ByteSpan> spans, int threads) {
  std::int64_t total = 0;
  for (const ByteSpan& span : spans) total += span.bytes;
  // Eight per thread even out what ends of spans make unequal; below 64 KiB a piece is all beginnings of streams.
  const std::int64_t most =
      std::clamp(round_down(total / (8 * std::int64_t{threads}), kReadUnit), std::int64_t{64} << 10, kReadPiece);
  std::vector<ByteSpan> pieces;
  for (const ByteSpan& span : spans) {
    const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(span.data) % 64);
    const std::int64_t skipped = misaligned == 0 ? 0 : 64 - misaligned, units = (span.bytes - skipped) / kReadUnit;
    if (units <= 0) continue;
    const std::int64_t count = ceil_div(units * kReadUnit, most);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t begin = units * i / count, end = units * (i + 1) / count;
      pieces.push_back({span.data + skipped + begin * kReadUnit, (end - begin) * kReadUnit});
    }
  }
  return pieces;
}

double measure_read_rate(Executor& executor, std::span<const ByteSpan> pieces, const CpuFeatures& cpu, double seconds) {
  MOTET_CHECK(!pieces.empty());
  for (const ByteSpan& piece : pieces)
    MOTET_CHECK(piece.bytes > 0 && piece.bytes % kReadUnit == 0 && reinterpret_cast<std::uintptr_t>(piece.data) % 64 == 0,
                "%lld bytes", static_cast<long long>(piece.bytes));
  const std::int64_t wanted = 2 * executor.threads() * kReadPiece;  // of one round
  ReadWork work{reader_of(cpu), pieces, 0, 0, static_cast<std::size_t>(executor.threads())};
  std::array<double, 1024> rates{};
  std::size_t count = 0;
  std::int64_t bytes = 0;
  const auto round = [&] {
    work.first = (work.first + work.count) % pieces.size();
    bytes = 0;
    for (work.count = 0; bytes < wanted; ++work.count) bytes += pieces[(work.first + work.count) % pieces.size()].bytes;
    const double start = now();
    executor.run(
        executor.threads(),
        [](void* context, std::int64_t thread, int) noexcept {
          const auto& mine = *static_cast<const ReadWork*>(context);
          for (auto i = static_cast<std::size_t>(thread); i < mine.count; i += mine.threads) {
            const ByteSpan& piece = mine.pieces[(mine.first + i) % mine.pieces.size()];
            mine.read(piece.data, piece.bytes);
          }
        },
        &work);
    return static_cast<double>(bytes) / (now() - start);
  };
  std::int64_t total = 0;
  for (const ByteSpan& piece : pieces) total += piece.bytes;
  const double begin = now();
  // What lay in the caches is gone after one pass, or after the half of the time that it may take.
  for (std::int64_t done = 0; done < total && now() - begin < seconds / 2; done += bytes) round();
  while (count < rates.size() && (count < 3 || now() - begin < seconds)) rates[count++] = round();
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::nth_element(rates.begin(), middle, rates.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

bool bf16_dot_is_faster(const CpuFeatures& cpu) {
  struct Here final : Executor {
    int threads() const noexcept override { return 1; }
    void run(std::int64_t pieces, void (*body)(void*, std::int64_t, int) noexcept, void* context) noexcept override {
      const DefaultFpState state;
      for (std::int64_t piece = 0; piece < pieces; ++piece) body(context, piece, 0);
    }
  } here;
  const double bf16 = measure_dot_rate(here, DotKind::bf16_dot, cpu, 0.015);
  return bf16 > 1.2 * measure_dot_rate(here, DotKind::f32_fma, cpu, 0.015);
}

}  // namespace motet
