// SPDX-License-Identifier: Apache-2.0
// Every kernel set on 2880 x 2880 matrices (gpt-oss-20b): each thread streams matrices of its own from memory, in the layout in
// which checkpoints hold them. Each pass has a probe of the machine's limit right before it; `share` is the median of the
// quotients.
//
// usage: kernels_bench [--benchmark_filter=mxfp4/avx512_bf16/bf16_dot/.*] [--benchmark_...]
// names: FORMAT/TARGET/ARITHMETIC/LAYOUT/few|many/TOKENS/iterations:N/manual_time. MOTET_BENCH_MIB sets the bytes of codes in all
// (default 256).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "formats/format.h"
#include "kernels/kernel.h"
#include "kernels/probe.h"

namespace motet {
namespace {

constexpr std::int64_t kRows = 2880, kCols = 2880;

struct Target {
  const char* name;
  const char* flags;
};
constexpr Target kTargets[] = {
#define MOTET_TARGET_LINE(name, flags, needs) {#name, flags},
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
};

bool usable(const Target& target) {
  std::string flags = target.flags;
  for (std::size_t at = 0; at < flags.size();) {
    const std::size_t end = std::min(flags.find(';', at), flags.size());
    if (!has_instructions(this_cpu(), flags.substr(at, end - at))) return false;
    at = end + 1;
  }
  return true;
}

std::byte* aligned(std::int64_t bytes) {
  return static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<std::size_t>((bytes + 8191) / 4096 * 4096)));
}

/// Matrices side by side, all alike in values and none in memory.
struct Weights {
  std::vector<WeightView> views;
  std::unique_ptr<std::byte, void (*)(void*)> codes{nullptr, std::free}, scales{nullptr, std::free};
  std::int64_t code_bytes = 0, bytes_per_matrix = 0;
};

/// The weights of the format last asked for: benchmarks run in the order of formats.
Weights& weights_of(const Format& format, bool transposed) {
  static Weights weights;
  static std::string held;
  const std::string wanted = std::string(format.facts.name) + (transposed ? "/columns" : "/rows");
  if (held == wanted) return weights;
  held = wanted;
  weights = Weights();
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-35f;
  }
  EncodedMatrix one;
  format.encode(values.data(), kRows, kCols, one);
  const auto code_bytes = static_cast<std::int64_t>(one.codes.size()), scale_bytes = static_cast<std::int64_t>(one.scales.size());
  const char* wish = std::getenv("MOTET_BENCH_MIB");
  const std::int64_t total = (wish != nullptr ? std::atoll(wish) : 256) << 20,
                     count = std::max<std::int64_t>(2, (total / code_bytes + 1) / 2 * 2);
  weights.codes.reset(aligned(count * code_bytes));
  weights.scales.reset(aligned(count * scale_bytes));
  weights.code_bytes = count * code_bytes;
  weights.bytes_per_matrix = code_bytes + scale_bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    WeightView view = one.view;
    view.codes = weights.codes.get() + i * code_bytes;
    std::memcpy(weights.codes.get() + i * code_bytes, one.codes.data(), one.codes.size());
    if (scale_bytes > 0) {
      view.scales = weights.scales.get() + i * scale_bytes;
      std::memcpy(weights.scales.get() + i * scale_bytes, one.scales.data(), one.scales.size());
    }
    if (transposed) {  // square, so the same bytes serve
      view.row_stride = one.view.col_stride;
      view.col_stride = one.view.row_stride;
    }
    weights.views.push_back(view);
  }
  return weights;
}

struct Pass {
  const KernelSet* set;
  bool many;
  const Weights* weights;
  std::int64_t tokens, matrices_per_thread, stride;
  std::vector<std::byte*> x, scratch;
  std::vector<float*> out;
};

void run_thread(void* context, std::int64_t piece, int) noexcept {
  auto& pass = *static_cast<Pass*>(context);
  const auto p = static_cast<std::size_t>(piece);
  for (std::int64_t i = 0; i < pass.matrices_per_thread; ++i) {
    const WeightView& view = pass.weights->views[static_cast<std::size_t>(piece * pass.matrices_per_thread + i)];
    const MatmulArgs args = {.weight = &view,
                             .row_begin = 0,
                             .row_end = kRows,
                             .x = pass.x[p],
                             .x_stride = pass.stride,
                             .x_dtype = pass.set->activation,
                             .tokens = pass.tokens,
                             .out = pass.out[p],
                             .out_stride = kRows,
                             .scratch = pass.scratch[p]};
    (pass.many ? pass.set->many : pass.set->few)(args);
  }
}

/// The probe that bounds an arithmetic, and the share of it that counts: bf16x2_tile multiplies everything twice.
struct Peak {
  DotKind kind;
  double share = 1;
};
Peak peak_of(KernelArithmetic arithmetic) {
  switch (arithmetic) {
    case KernelArithmetic::f32:
      return {DotKind::f32_fma};
    case KernelArithmetic::bf16_dot:
      return {DotKind::bf16_dot};
    case KernelArithmetic::bf16_tile:
      return {DotKind::bf16_tile};
    case KernelArithmetic::bf16x2_tile:
      return {DotKind::bf16_tile, 0.5};
    case KernelArithmetic::int16_dot:
      return {DotKind::int16_dot};
    case KernelArithmetic::int8_dot:
      return {DotKind::int8_dot};
  }
  return {DotKind::f32_fma};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void bench(benchmark::State& state, const Format* format, const KernelSet* set, bool transposed, bool many, std::int64_t tokens) {
  static ThreadPool pool(2);
  const int threads = pool.threads();
  const Weights& weights = weights_of(*format, transposed);
  Pass pass = {.set = set,
               .many = many,
               .weights = &weights,
               .tokens = tokens,
               .matrices_per_thread = static_cast<std::int64_t>(weights.views.size()) / threads,
               .stride = kCols * (set->activation == DType::bf16 ? 2 : 4),
               .x = {},
               .scratch = {},
               .out = {}};
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> owned;
  const auto buffer = [&](std::int64_t bytes) {
    owned.emplace_back(aligned(bytes), std::free);
    std::memset(owned.back().get(), 0, static_cast<std::size_t>(bytes));
    return owned.back().get();
  };
  for (int t = 0; t < threads; ++t) {
    pass.x.push_back(buffer(tokens * pass.stride));
    for (std::int64_t i = 0; i < tokens * kCols; ++i) {
      const float value = static_cast<float>(i % 37 - 18) / 16.0f;
      const auto upper = static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, value) >> 16);
      if (set->activation == DType::bf16)
        std::memcpy(pass.x.back() + 2 * i, &upper, 2);
      else
        std::memcpy(pass.x.back() + 4 * i, &value, 4);
    }
    pass.scratch.push_back(buffer(set->scratch_bytes(kCols)));
    pass.out.push_back(reinterpret_cast<float*>(buffer(tokens * kRows * 4)));
  }
  const double bytes = static_cast<double>(weights.bytes_per_matrix) * static_cast<double>(threads * pass.matrices_per_thread);
  const double flops = 2.0 * static_cast<double>(kRows * kCols) * static_cast<double>(tokens * threads * pass.matrices_per_thread);
  const Peak peak = peak_of(set->arithmetic);
  const ByteSpan codes{weights.codes.get(), weights.code_bytes};
  const std::vector<ByteSpan> pieces = read_pieces({&codes, 1}, threads);
  std::vector<double> read, dot, byte_rates, flop_rates, read_share, dot_share;
  for (auto _ : state) {
    read.push_back(measure_read_rate(pool, pieces, this_cpu(), 0.02));
    dot.push_back(measure_dot_rate(pool, peak.kind, this_cpu(), 0.01) * peak.share);
    const auto start = std::chrono::steady_clock::now();
    pool.run(threads, run_thread, &pass);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    byte_rates.push_back(bytes / seconds);
    flop_rates.push_back(flops / seconds);
    read_share.push_back(byte_rates.back() / read.back());
    dot_share.push_back(flop_rates.back() / dot.back());
  }
  state.counters["GB/s"] = median(byte_rates) * 1e-9;
  state.counters["read_probe"] = median(read) * 1e-9;
  state.counters["read_share"] = median(read_share);
  state.counters["GFLOP/s"] = median(flop_rates) * 1e-9;
  state.counters["dot_probe"] = median(dot) * 1e-9;
  state.counters["dot_share"] = median(dot_share);
}

void register_all() {
  for (const Format* format : all_formats()) {
    for (const bool transposed : {false, true}) {
      if (transposed && format->facts.bits_per_value < 8) continue;
      for (const Target& target : kTargets) {
        if (!usable(target)) continue;
        for (const KernelArithmetic arithmetic : kAllArithmetics) {
          const KernelSet* set = find_kernels(format->facts.name, target.name, arithmetic);
          if (set == nullptr) continue;
          const std::string name = std::string(format->facts.name) + "/" + target.name + "/" + std::string(name_of(arithmetic)) +
                                   (transposed ? "/columns" : "/rows");
          for (const std::int64_t tokens : {1, 2, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256}) {
            for (const bool many : {false, true}) {
              if (!many && (set->few == nullptr || transposed || tokens > set->max_few)) continue;
              if (many && set->many == nullptr) continue;
              benchmark::RegisterBenchmark((name + (many ? "/many/" : "/few/") + std::to_string(tokens)).c_str(),
                                           [=](benchmark::State& state) { bench(state, format, set, transposed, many, tokens); })
                  ->UseManualTime()
                  ->Iterations(9)
                  ->Unit(benchmark::kMillisecond);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace motet

int main(int argc, char** argv) {
  motet::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
