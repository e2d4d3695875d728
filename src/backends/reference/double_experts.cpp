// SPDX-License-Identifier: Apache-2.0
#include "backends/reference/double_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/reference/double_body.h"
#include "backends/reference/double_tokens.h"
#include "backends/reference/quantised_rows.h"
#include "backends/support/weights_check.h"
#include "base/check.h"
#include "base/math.h"
#include "formats/format.h"

namespace motet {
namespace {

constexpr std::int64_t kTokens = 32;  ///< tokens per piece: bounds the scratch, pays for decoding a row

/// Elements of the arrays in one thread's scratch; all double.
struct Scratch {
  std::int64_t width = 0, intermediate = 0;  ///< longest reduction over hidden or latent, and over an intermediate
  std::int64_t row() const noexcept { return std::max(width, intermediate); }
  std::int64_t bytes() const noexcept {
    return round_up((kTokens * (width + intermediate) + row()) * static_cast<std::int64_t>(sizeof(double)), 64);
  }
};

Scratch scratch_of(const LayerSpec& spec, std::int64_t intermediate, std::int64_t shared) noexcept {
  return {std::max(spec.hidden, spec.latent), std::max(intermediate, shared)};
}

/// What one feed-forward needs beside its weights.
struct Body {
  const Activation* activation = nullptr;
  const Format* gate_up = nullptr;
  const Format* down = nullptr;
  std::int64_t x_stored = 0, act_stored = 0, rows_stored = 0;
  std::optional<Layout> scales = std::nullopt;  ///< both products read mxfp8
};

class DoubleBackend final : public PreparedBackend {
 public:
  DoubleBackend(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const DoubleRules& rules)
      : weights_(std::move(weights)), twin_(rules.twin) {
    const LayerSpec& spec = weights_->spec;
    scratch_ = scratch_of(spec, spec.intermediate, spec.shared.intermediate);
    const std::int64_t stored_x = plan.stored(spec.latent > 0 ? Axis::latent : Axis::hidden);
    routed_ = {&spec.activation, find_format(spec.gate_up.format), find_format(spec.down.format),
               stored_x,         plan.stored(Axis::down_in),       plan.stored(Axis::down_out),
               rules.scales};
    if (spec.shared.intermediate > 0) {
      shared_ = {&spec.shared.activation,
                 find_format(spec.shared.gate_up.format),
                 find_format(spec.shared.down.format),
                 plan.stored(Axis::hidden),
                 plan.stored(Axis::shared),
                 spec.hidden};
    }
    hidden_stored_ = plan.stored(Axis::hidden);
    latent_stored_ = plan.stored(Axis::latent);
    latent_in_ = find_format(spec.latent_in.format);
    latent_out_ = find_format(spec.latent_out.format);
    router_ = find_format(spec.router.weight_dtype == DType::f32 ? "f32" : spec.router.weight_dtype == DType::f16 ? "f16" : "bf16");
  }

  std::int64_t prepared_bytes() const noexcept override { return 0; }

  void prepare_rows(const ConstMatrix& source, const std::int32_t* index, const float* scale, std::int64_t first,
                    std::int64_t count, std::byte* out, std::int64_t out_stride, std::int64_t stored) const noexcept override {
    const std::int64_t element = source.dtype == DType::f32 ? 4 : 2;
    for (std::int64_t r = first; r < first + count; ++r) {
      const std::byte* from =
          static_cast<const std::byte*>(source.data) + (index == nullptr ? r : index[r]) * source.cols * element;
      auto* to = reinterpret_cast<float*>(out + r * out_stride);
      for (std::int64_t k = 0; k < source.cols; ++k) {
        const auto value = static_cast<float>(element_of(from, source.dtype, k));
        to[k] = scale == nullptr ? value : value * scale[r];
      }
      std::fill(to + source.cols, to + stored, 0.0f);
    }
  }

  void run_router(const ConstMatrix& hidden_states, float* logits, std::int64_t logits_stride, std::byte* scratch,
                  std::int64_t scratch_stride, Executor& executor) noexcept override {
    const std::int64_t element = hidden_states.dtype == DType::f32 ? 4 : 2;
    const Dense dense{router_,
                      &weights_->router,
                      static_cast<const std::byte*>(hidden_states.data),
                      hidden_states.cols * element,
                      hidden_states.dtype,
                      hidden_states.rows,
                      logits,
                      logits_stride};
    run_dense(dense, scratch, scratch_stride, executor);
  }

  void run_experts(const ExpertBatch& batch, Executor& executor) noexcept override {
    routed_.scales ? run_slots(batch, executor) : run_bodies(batch, routed_, weights_->experts.data(), executor);
  }
  void run_shared(const ExpertBatch& batch, Executor& executor) noexcept override {
    run_bodies(batch, shared_, &weights_->shared, executor);
  }

  void run_latent_in(const DenseBatch& batch, Executor& executor) noexcept override {
    run_latent(latent_in_, weights_->latent_in, hidden_stored_, batch, executor);
  }
  void run_latent_out(const DenseBatch& batch, Executor& executor) noexcept override {
    run_latent(latent_out_, weights_->latent_out, latent_stored_, batch, executor);
  }

 private:
  struct Dense {
    const Format* format;
    const WeightView* view;
    const std::byte* x;
    std::int64_t x_stride;
    DType dtype;
    std::int64_t tokens;
    float* out;
    std::int64_t out_stride;
  };

  double* x_of(std::byte* scratch) const noexcept { return reinterpret_cast<double*>(scratch); }
  double* act_of(std::byte* scratch) const noexcept { return x_of(scratch) + kTokens * scratch_.width; }
  double* row_of(std::byte* scratch) const noexcept { return act_of(scratch) + kTokens * scratch_.intermediate; }

  /// Padding [valid, stored) of prepared fp32 rows must be zero: a stage that reads it would otherwise add what lies there.
  void verify_zero(const std::byte* rows, std::int64_t stride, std::int64_t count, std::int64_t valid,
                   std::int64_t stored) const noexcept {
    for (std::int64_t r = 0; twin_ && r < count; ++r) {
      const auto* row = reinterpret_cast<const float*>(rows + r * stride);
      for (std::int64_t k = valid; k < stored; ++k)
        MOTET_CHECK(row[k] == 0.0f, "row %lld, element %lld of %lld stored is not zero", static_cast<long long>(r),
                    static_cast<long long>(k), static_cast<long long>(stored));
    }
  }

  void run_latent(const Format* format, const WeightView& view, std::int64_t stored, const DenseBatch& batch,
                  Executor& executor) const noexcept {
    verify_zero(batch.x, batch.x_stride, batch.tokens, view.cols, stored);
    run_dense({format, &view, batch.x, batch.x_stride, DType::f32, batch.tokens, batch.out, batch.out_stride}, batch.scratch,
              batch.scratch_stride, executor);
  }

  void run_dense(const Dense& dense, std::byte* scratch, std::int64_t scratch_stride, Executor& executor) const noexcept {
    struct Context {
      const DoubleBackend* self;
      const Dense* dense;
      std::byte* scratch;
      std::int64_t scratch_stride;
    } context{this, &dense, scratch, scratch_stride};
    if (dense.tokens == 0) return;
    executor.run(
        ceil_div(dense.tokens, kTokens),
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const auto& here = *static_cast<const Context*>(opaque);
          here.self->dense_piece(*here.dense, piece * kTokens, here.scratch + thread * here.scratch_stride);
        },
        &context);
  }

  void dense_piece(const Dense& dense, std::int64_t first, std::byte* scratch) const noexcept {
    const Tokens x{x_of(scratch), dense.view->cols, std::min(kTokens, dense.tokens - first)};
    load(x, dense.x + first * dense.x_stride, dense.x_stride, dense.dtype);
    const RowProduct product(*dense.format, *dense.view, row_of(scratch));
    double sums[kTokens];
    for (std::int64_t n = 0; n < dense.view->rows; ++n) {
      product(n, x, sums);
      for (std::int64_t t = 0; t < x.count; ++t) dense.out[(first + t) * dense.out_stride + n] = static_cast<float>(sums[t]);
    }
  }

  void run_bodies(const ExpertBatch& batch, const Body& body, const ExpertView* experts, Executor& executor) const noexcept {
    struct Context {
      const DoubleBackend* self;
      const ExpertBatch* batch;
      const Body* body;
      const ExpertView* experts;
    } context{this, &batch, &body, experts};
    std::int64_t pieces = 0;
    for (std::int64_t slot = 0; slot < batch.slots; ++slot)
      pieces += ceil_div(batch.first_row[slot + 1] - batch.first_row[slot], kTokens);
    if (pieces == 0) return;
    executor.run(
        pieces,
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const auto& here = *static_cast<const Context*>(opaque);
          const std::int64_t* first_row = here.batch->first_row;
          std::int64_t slot = 0;
          for (std::int64_t here_pieces = 0;; ++slot, piece -= here_pieces) {
            here_pieces = ceil_div(first_row[slot + 1] - first_row[slot], kTokens);
            if (piece < here_pieces) break;
          }
          const std::int64_t first = first_row[slot] + piece * kTokens;
          here.self->body_piece(*here.batch, *here.body, here.experts[slot],
                                {first, std::min(kTokens, first_row[slot + 1] - first)}, thread);
        },
        &context);
  }

  struct RowRange {
    std::int64_t first, count;
  };

  void body_piece(const ExpertBatch& batch, const Body& body, const ExpertView& expert, const RowRange& range,
                  int thread) const noexcept {
    std::byte* scratch = batch.scratch + thread * batch.scratch_stride;
    const std::byte* rows = batch.x + range.first * batch.x_stride;
    const Tokens x{x_of(scratch), expert.up.cols, range.count};
    const Tokens act{act_of(scratch), expert.up.rows, range.count};
    verify_zero(rows, batch.x_stride, range.count, x.cols, body.x_stored);
    load(x, rows, batch.x_stride, DType::f32);
    make_act(body, expert, x, act, row_of(scratch));
    if (twin_) {
      store_act(batch, body, act, range);
      load(act, batch.act + range.first * batch.act_stride, batch.act_stride, DType::f32);
    }
    make_rows(batch, body, expert, act, {range, row_of(scratch)});
  }

  /// GEMM1 and the activation.
  void make_act(const Body& body, const ExpertView& expert, const Tokens& x, const Tokens& act, double* row) const noexcept {
    const RowProduct gate_row(*body.gate_up, expert.gate, row), up_row(*body.gate_up, expert.up, row);
    double gate[kTokens] = {}, up[kTokens];
    for (std::int64_t n = 0; n < act.cols; ++n) {
      if (body.activation->gated) gate_row(n, x, gate);
      up_row(n, x, up);
      const double gate_bias = body.activation->gated ? bias_of(expert.gate_bias, n) : 0, up_bias = bias_of(expert.up_bias, n);
      for (std::int64_t t = 0; t < act.groups() * kLanes; ++t)
        *act.at(t, n) = double_body(*body.activation, gate[t] + gate_bias, up[t] + up_bias);
    }
  }

  /// Stores act as fp32 at the plan's width, zero-padded, and verifies the padding.
  void store_act(const ExpertBatch& batch, const Body& body, const Tokens& act, const RowRange& range) const noexcept {
    std::byte* rows = batch.act + range.first * batch.act_stride;
    for (std::int64_t t = 0; t < act.count; ++t) {
      auto* row = reinterpret_cast<float*>(rows + t * batch.act_stride);
      for (std::int64_t n = 0; n < act.cols; ++n) row[n] = static_cast<float>(*act.at(t, n));
      std::fill(row + act.cols, row + body.act_stored, 0.0f);
    }
    verify_zero(rows, batch.act_stride, act.count, act.cols, body.act_stored);
  }

  struct Place {
    RowRange range;
    double* row;
  };

  /// GEMM2: rows of the result at their stored width.
  void make_rows(const ExpertBatch& batch, const Body& body, const ExpertView& expert, const Tokens& act,
                 const Place& place) const noexcept {
    const RowProduct down_row(*body.down, expert.down, place.row);
    const std::int64_t first = place.range.first;
    double sums[kTokens];
    for (std::int64_t n = 0; n < expert.down.rows; ++n) {
      down_row(n, act, sums);
      const double bias = bias_of(expert.down_bias, n);
      for (std::int64_t t = 0; t < act.count; ++t)
        batch.rows[(first + t) * batch.rows_stride + n] = static_cast<float>(sums[t] + bias);
    }
    for (std::int64_t t = 0; twin_ && t < act.count; ++t) {
      float* row = batch.rows + (first + t) * batch.rows_stride;
      std::fill(row + expert.down.rows, row + body.rows_stored, std::numeric_limits<float>::quiet_NaN());
    }
  }

  /// Routed experts on mxfp8 activations, one piece per slot: scales of an expert are put into their layout together.
  void run_slots(const ExpertBatch& batch, Executor& executor) const noexcept {
    struct Context {
      const DoubleBackend* self;
      const ExpertBatch* batch;
    } context{this, &batch};
    if (batch.first_row[batch.slots] == 0) return;
    executor.run(
        batch.slots,
        [](void* opaque, std::int64_t slot, int thread) noexcept {
          const auto& here = *static_cast<const Context*>(opaque);
          here.self->slot_piece(*here.batch, slot, here.batch->scratch + thread * here.batch->scratch_stride);
        },
        &context);
  }

  void slot_piece(const ExpertBatch& batch, std::int64_t slot, std::byte* scratch) const noexcept {
    const ExpertView& expert = weights_->experts[static_cast<std::size_t>(slot)];
    const std::int64_t first = batch.first_row[slot], count = batch.first_row[slot + 1] - first;
    const QuantisedRows x = quantised(batch, batch.quantised_x, slot, {expert.up.cols, routed_.x_stored});
    const QuantisedRows act = quantised(batch, batch.quantised_act, slot, {expert.up.rows, routed_.act_stored});
    E8m0* linear = batch.linear_scales == nullptr
                       ? nullptr
                       : reinterpret_cast<E8m0*>(batch.linear_scales) + first * std::max(x.groups(), act.groups());
    const auto for_each_chunk = [&](std::int64_t cols, double* values, auto&& body) {
      for (std::int64_t begin = 0; begin < count; begin += kTokens)
        body(Tokens{values, cols, std::min(kTokens, count - begin)}, begin);
    };

    const std::byte* rows = batch.x + first * batch.x_stride;
    verify_zero(rows, batch.x_stride, count, x.valid, x.stored);
    quantise(rows, batch.x_stride, linear, x);
    for_each_chunk(x.valid, x_of(scratch), [&](const Tokens& tokens, std::int64_t begin) {
      load(tokens, x, begin);
      const Tokens made{act_of(scratch), act.valid, tokens.count};
      make_act(routed_, expert, tokens, made, row_of(scratch));
      store_act(batch, routed_, made, {first + begin, tokens.count});
    });
    quantise(batch.act + first * batch.act_stride, batch.act_stride, linear, act);
    for_each_chunk(act.valid, act_of(scratch), [&](const Tokens& tokens, std::int64_t begin) {
      load(tokens, act, begin);
      make_rows(batch, routed_, expert, tokens, {{first + begin, tokens.count}, row_of(scratch)});
    });
  }

  struct Columns {
    std::int64_t valid, stored;
  };

  /// The part of an area that holds one slot's rows.
  QuantisedRows quantised(const ExpertBatch& batch, const QuantisedArea& area, std::int64_t slot,
                          const Columns& columns) const noexcept {
    const std::int64_t first = batch.first_row[slot], groups = ceil_div(columns.stored, kMxfp8Block);
    return {.codes = reinterpret_cast<std::uint8_t*>(area.codes) + first * columns.stored,
            .scales = reinterpret_cast<E8m0*>(area.scales) + first_scale(*routed_.scales, batch.first_row, slot, groups),
            .layout = *routed_.scales,
            .rows = batch.first_row[slot + 1] - first,
            .valid = columns.valid,
            .stored = columns.stored};
  }

  std::shared_ptr<const LayerWeights> weights_;
  bool twin_;
  Scratch scratch_;
  Body routed_, shared_;
  std::int64_t hidden_stored_ = 0, latent_stored_ = 0;
  const Format *latent_in_ = nullptr, *latent_out_ = nullptr, *router_ = nullptr;
};

}  // namespace

std::optional<Refusal> double_supports(const BackendRequest& request) {
  const LayerSpec& spec = request.spec;
  if (request.deployment.wishes.residence == Residence::packed)
    return Refusal{"residence_not_built", "backends in double precision read published bytes", "packed", "mapped"};
  const bool shared = spec.shared.intermediate > 0, latent = spec.latent > 0;
  const struct {
    std::string_view role;
    const ProjectionSpec* projection;
    bool used;
  } projections[] = {{"gate_up", &spec.gate_up, true},
                     {"down", &spec.down, true},
                     {"shared.gate_up", &spec.shared.gate_up, shared},
                     {"shared.down", &spec.shared.down, shared},
                     {"latent_in", &spec.latent_in, latent},
                     {"latent_out", &spec.latent_out, latent}};
  for (const auto& entry : projections) {
    if (!entry.used || find_format(entry.projection->format) != nullptr) continue;
    return Refusal{"format_not_built", "the format's decoder must be in this build",
                   std::string(entry.role) + " in '" + entry.projection->format + "'", "a format of `motet list formats`"};
  }
  return std::nullopt;
}

std::optional<Refusal> quantised_supports(const BackendRequest& request) {
  const Arithmetic level = request.deployment.wishes.arithmetic;
  if (level != Arithmetic::fast)
    return Refusal{"arithmetic_too_coarse", "mxfp8 activations are less accurate than this level allows",
                   "arithmetic " + std::string(name_of(level)), "arithmetic fast"};
  return double_supports(request);
}

BackendStorage double_storage(const BackendRequest& request, const DoubleRules& rules) {
  const LayerSpec& spec = request.spec;
  BackendStorage out;
  out.hidden = rules.stored(spec.hidden);
  out.latent = spec.latent > 0 ? rules.stored(spec.latent) : 0;
  out.intermediate = rules.stored(request.intermediate_valid);
  out.up = out.intermediate;
  out.gate = spec.activation.gated ? out.intermediate : 0;
  out.shared_intermediate = spec.shared.intermediate > 0 ? rules.stored(request.shared_intermediate_valid) : 0;
  out.rows_width = rules.stored(spec.dispatch_width());
  out.activation = DType::f32;
  out.scratch_per_thread = scratch_of(spec, request.intermediate_valid, request.shared_intermediate_valid).bytes();
  out.prepared = 0;
  out.arithmetic = "double";
  out.reason = rules.reason;
  out.sum_order = {"every product: k ascending in one double accumulator"};
  out.rounding_points = {"GEMM2 rows, latent projections and logits: to fp32, once each"};
  if (rules.twin) out.rounding_points.push_back("intermediates: to fp32, once");
  if (rules.scales) {
    out.quantised = {.group = kMxfp8Block, .layout = *rules.scales, .step = kMxfp8Step};
    out.rounding_points.push_back(
        "what GEMM1 and GEMM2 of the routed experts read: to mxfp8 (E4M3, one E8M0 scale per 32), once each");
  }
  return out;
}

std::unique_ptr<PreparedBackend> prepare_double(const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights,
                                                const DoubleRules& rules) {
  check_weights(plan, rank, *weights);
  return std::make_unique<DoubleBackend>(plan, std::move(weights), rules);
}

}  // namespace motet
