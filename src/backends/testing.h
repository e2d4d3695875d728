// SPDX-License-Identifier: Apache-2.0
// For tests of backends: planned and prepared layers, and batches on poisoned memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "base/check.h"
#include "base/cpu_features.h"
#include "base/math.h"
#include "base/numbers.h"
#include "base/thread_pool.h"
#include "formats/format.h"
#include "formats/synthetic.h"
#include "kernels/kernel.h"

namespace motet::testing {

/// What the machine lacks for a target, such as "AVX-512 BF16"; "" when it can run.
struct TargetState {
  std::string name, missing;
};
/// Every line of targets.inc.
inline std::vector<TargetState> targets() {
  const struct {
    std::string_view name, flags;
  } lines[] = {
#define MOTET_TARGET_LINE(name, flags, needs) {#name, flags},
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
  };
  std::vector<TargetState> out;
  for (const auto& line : lines) {
    TargetState state{std::string(line.name), ""};
    for (std::size_t begin = 0; begin < line.flags.size();) {
      const std::string_view flag = line.flags.substr(begin, line.flags.find(';', begin) - begin);
      if (!has_instructions(this_cpu(), flag))
        state.missing += (state.missing.empty() ? "" : ", ") + std::string(instructions_name(flag));
      begin += flag.size() + 1;
    }
    out.push_back(state);
  }
  return out;
}

/// Targets that this machine can run, best first.
inline std::vector<std::string> usable_targets() {
  std::vector<std::string> out;
  for (const TargetState& target : targets()) {
    if (target.missing.empty()) out.push_back(target.name);
  }
  return out;
}

inline Environment environment() {
  Environment out;
  out.version = "test";
  for (const std::string& name : usable_targets()) out.targets.push_back({name, true, true, ""});
  out.arithmetic_ranking = out.few_ranking = {"int8_dot", "bf16_tile", "bf16x2_tile", "bf16_dot", "int16_dot", "f32"};
  out.threads = 3;
  out.memory_bytes = std::int64_t{1} << 40;
  return out;
}

inline Catalog catalog() {
  Catalog out;
  for (const Format* format : all_formats()) out.formats.push_back(format->facts);
  for (const Backend* backend : all_backends()) out.backends.push_back(backend->traits);
  return out;
}

/// A projection in a format, with the format's own blocks (128 x 128 where the projection chooses).
inline ProjectionSpec projection(const std::string& format, bool transposed = false, bool bias = false) {
  const FormatFacts& facts = find_format(format)->facts;
  ProjectionSpec out;
  out.format = format;
  out.block_rows = facts.block_rows == 0 ? 128 : facts.block_rows;
  out.block_cols = facts.block_cols == 0 ? 128 : facts.block_cols;
  out.transposed = transposed;
  out.bias = bias;
  return out;
}

inline Activation activation(ActivationKind kind) {
  Activation out;
  out.kind = kind;
  out.gated = kind != ActivationKind::relu2;
  if (kind == ActivationKind::swiglu_oai) out.alpha = 1.702, out.limit = 1, out.offset = 1;
  if (kind == ActivationKind::swiglu_clamped || kind == ActivationKind::swiglu_step) out.limit = 0.75;
  if (kind == ActivationKind::situ) out.alpha = 4, out.limit = 25;
  return out;
}

/// Six experts without shared expert: hidden 288, intermediate 96 unless changed.
inline LayerSpec layer_spec(const std::string& format) {
  LayerSpec spec;
  spec.family = "test";
  spec.hidden = 288;
  spec.intermediate = 96;
  spec.experts = 6;
  spec.top_k = 2;
  spec.activation = activation(ActivationKind::silu);
  spec.gate_up = projection(format);
  spec.down = projection(format);
  return spec;
}

/// The wished level, or the most accurate that the backend takes where it does not take that.
inline Arithmetic level_of(std::string_view backend, Arithmetic wished = Arithmetic::bf16) {
  const Backend* found = find_backend(backend);
  return found == nullptr ? wished : std::max(wished, found->traits.best_level);
}

/// A layer of at most 64 tokens.
inline Plan plan_of(const LayerSpec& spec, const std::string& backend, const std::string& target = "", const Wishes& wishes = {}) {
  Deployment deployment;
  deployment.tokens = 64;
  deployment.input = DType::f32;
  deployment.wishes = wishes;
  deployment.wishes.backend = backend;
  deployment.wishes.target = target;
  deployment.wishes.arithmetic = level_of(backend, wishes.arithmetic);
  return plan_with(spec, deployment, environment(), catalog()).value();
}

/// Zeroed or poisoned bytes at a 64-byte boundary.
class Memory {
 public:
  explicit Memory(std::int64_t bytes, int fill = 0xFF)
      : bytes_(static_cast<std::size_t>(bytes) + 64, static_cast<std::byte>(fill)) {}
  std::byte* data() { return bytes_.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes_.data()) % 64) % 64; }
  float* floats() { return reinterpret_cast<float*>(data()); }

 private:
  std::vector<std::byte> bytes_;
};

/// Values in [-2, 2) that bf16 holds exactly.
inline std::vector<float> inputs(std::int64_t rows, std::int64_t cols, std::uint64_t seed = 7) {
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  std::uint64_t state = seed;
  for (float& value : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = bf16_to_f32(f32_to_bf16(static_cast<float>(static_cast<std::int64_t>(state >> 40) - (1 << 23)) * 0x1p-22f));
  }
  return out;
}

/// Rows of a batch: counts[slot] rows of each slot; the next input rows in order.
struct Rows {
  std::vector<std::int64_t> counts;
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t count : counts) sum += count;
    return sum;
  }
};

/// A prepared backend that runs batches on memory of 0xFF bytes (NaN in every type): what it must not read would show.
class Runner {
 public:
  Runner(Plan plan, std::shared_ptr<const LayerWeights> weights) : plan_(std::move(plan)) {
    ThreadPool pool(plan_.threads);
    prepared_ = find_backend(plan_.backend)->prepare(plan_, 0, std::move(weights), pool);
  }

  const Plan& plan() const { return plan_; }
  PreparedBackend& backend() { return *prepared_; }
  std::int64_t element() const { return bits_of(plan_.recipe.activation) / 8; }

  /// GEMM2 rows [rows, dispatch width] for `x` [rows, dispatch width]; checks that nothing past the rows was written.
  std::vector<float> experts(const std::vector<float>& x, const Rows& rows, Executor& executor) {
    const std::int64_t width = plan_.spec.dispatch_width();
    return run(x, width,
               {plan_.stored(plan_.spec.latent > 0 ? Axis::latent : Axis::hidden), plan_.stored(Axis::down_in),
                plan_.stored(Axis::down_out)},
               rows, executor, false);
  }
  std::vector<float> shared(const std::vector<float>& x, std::int64_t tokens, Executor& executor) {
    return run(x, plan_.spec.hidden, {plan_.stored(Axis::hidden), plan_.stored(Axis::shared), plan_.spec.hidden}, {{tokens}},
               executor, true);
  }
  std::vector<float> latent_in(const std::vector<float>& x, std::int64_t tokens, Executor& executor) {
    return dense(x, plan_.spec.hidden, plan_.stored(Axis::hidden), plan_.spec.latent, tokens, executor,
                 &PreparedBackend::run_latent_in);
  }
  std::vector<float> latent_out(const std::vector<float>& x, std::int64_t tokens, Executor& executor) {
    return dense(x, plan_.spec.latent, plan_.stored(Axis::latent), plan_.spec.hidden, tokens, executor,
                 &PreparedBackend::run_latent_out);
  }
  std::vector<float> router(const std::vector<float>& x, std::int64_t tokens, Executor& executor) {
    const std::int64_t experts = plan_.spec.experts + plan_.spec.router.zero_experts;
    std::vector<float> out(static_cast<std::size_t>(tokens * experts));
    Memory scratch(scratch_stride() * executor.threads());
    prepared_->run_router({x.data(), DType::f32, tokens, plan_.spec.hidden}, out.data(), experts, scratch.data(), scratch_stride(),
                          executor);
    return out;
  }

  /// Set before a run: added to element [row 0, first padding element] of prepared rows.
  float spoil_padding = 0;
  /// Rows of the last run at their stored width.
  std::vector<float> stored_rows;

 private:
  struct Stored {
    std::int64_t x, act, rows;
  };

  std::int64_t area_bytes(AreaId id) const { return plan_.area(id) == nullptr ? 0 : plan_.area(id)->bytes; }
  std::int64_t scratch_stride() const { return round_up(plan_.area(AreaId::scratch)->bytes / plan_.threads, 64); }

  std::vector<float> run(const std::vector<float>& x, std::int64_t width, const Stored& stored, const Rows& rows,
                         Executor& executor, bool shared) {
    constexpr std::int64_t kGuardRows = 2;
    const std::int64_t total = rows.total(), all = total + kGuardRows;
    std::vector<std::int64_t> first_row{0};
    for (const std::int64_t count : rows.counts) first_row.push_back(first_row.back() + count);
    Memory prepared(all * stored.x * element()), act(all * stored.act * element()), result(all * stored.rows * 4),
        scratch(scratch_stride() * executor.threads());
    prepared_->prepare_rows({x.data(), DType::f32, total, width}, nullptr, nullptr, 0, total, prepared.data(), stored.x * element(),
                            stored.x);
    if (spoil_padding != 0) prepared.floats()[width] = spoil_padding;
    Memory x_codes(area_bytes(AreaId::permuted_codes)), x_scales(area_bytes(AreaId::permuted_scales)),
        act_codes(area_bytes(AreaId::act_codes)), act_scales(area_bytes(AreaId::act_scales)),
        linear_scales(area_bytes(AreaId::linear_scales));
    MOTET_CHECK(shared || plan_.area(AreaId::permuted_codes) == nullptr || total <= plan_.max_rows(), "%lld rows",
                static_cast<long long>(total));
    const ExpertBatch batch{prepared.data(),
                            stored.x * element(),
                            first_row.data(),
                            static_cast<std::int64_t>(rows.counts.size()),
                            act.data(),
                            stored.act * element(),
                            result.floats(),
                            stored.rows,
                            scratch.data(),
                            scratch_stride(),
                            {x_codes.data(), x_scales.data()},
                            {act_codes.data(), act_scales.data()},
                            linear_scales.data()};
    shared ? prepared_->run_shared(batch, executor) : prepared_->run_experts(batch, executor);
    for (std::int64_t i = total * stored.rows; i < all * stored.rows; ++i)
      MOTET_CHECK(bits_of_f32(result.floats()[i]) == 0xFFFFFFFFu, "a row past the count was written");
    for (std::int64_t i = total * stored.act * element(); i < all * stored.act * element(); ++i)
      MOTET_CHECK(act.data()[i] == std::byte{0xFF}, "an act row past the count was written");
    stored_rows.assign(result.floats(), result.floats() + total * stored.rows);
    std::vector<float> out(static_cast<std::size_t>(total * width));
    for (std::int64_t r = 0; r < total; ++r)
      std::memcpy(out.data() + r * width, result.floats() + r * stored.rows, static_cast<std::size_t>(width) * 4);
    return out;
  }

  std::vector<float> dense(const std::vector<float>& x, std::int64_t width, std::int64_t stored, std::int64_t out_width,
                           std::int64_t tokens, Executor& executor,
                           void (PreparedBackend::*project)(const DenseBatch&, Executor&) noexcept) {
    Memory prepared(tokens * stored * element()), scratch(scratch_stride() * executor.threads());
    prepared_->prepare_rows({x.data(), DType::f32, tokens, width}, nullptr, nullptr, 0, tokens, prepared.data(), stored * element(),
                            stored);
    std::vector<float> out(static_cast<std::size_t>(tokens * out_width));
    (prepared_.get()->*project)(
        {prepared.data(), stored * element(), tokens, out.data(), out_width, scratch.data(), scratch_stride()}, executor);
    return out;
  }

  Plan plan_;
  std::unique_ptr<PreparedBackend> prepared_;
};

inline Runner runner(const LayerSpec& spec, const std::shared_ptr<const LayerWeights>& weights, const std::string& backend,
                     const std::string& target = "", const Wishes& wishes = {}) {
  return Runner(plan_of(spec, backend, target, wishes), weights);
}

/// |a - b| / |b| in L2 over everything.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

/// Bound of an fp32 sum chain over `length` products in all: each rounds to unit roundoff 2^-24, errors of random sign grow with
/// the root of the length; 8 leaves room for bodies that steepen them.
inline double f32_bound(std::int64_t length) { return 8 * 0x1p-24 * std::sqrt(static_cast<double>(length)); }
/// What kernels may lose by encoding activations once. With a scale per 32: half a step of the group's largest element, which is
/// about 2.1 to 3.5 deviations of Gaussian ones.
inline double encoding_bound(const Plan& plan) {
  const auto takes = [&](std::string_view arithmetic) { return plan.recipe.arithmetic.find(arithmetic) != std::string::npos; };
  double result = 0;
  if (takes("bf16x2_tile")) result += 0x1p-16;
  if (takes("int16_dot")) result += 3.5 / (2 * 32767);
  if (takes("int8_dot")) result += 3.5 / (2 * 127);
  return result;
}

/// Bound of the kernel arithmetic over a feed-forward: one rounding to bf16 (unit roundoff 2^-8) of the intermediates where
/// activations are bf16 (these inputs are exact in bf16), two encodings, and the fp32 sums.
inline double bound(const Plan& plan) {
  const std::int64_t length =
      plan.spec.dispatch_width() + plan.spec.intermediate + plan.spec.shared.intermediate + plan.spec.hidden;
  const bool bf16 = plan.recipe.activation == DType::bf16 || plan.recipe.arithmetic.find("bf16_") != std::string::npos;
  return f32_bound(length) + (bf16 ? 0x1p-8 : 0) + 2 * encoding_bound(plan);
}

}  // namespace motet::testing
