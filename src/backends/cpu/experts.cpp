// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/experts.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/packing.h"
#include "backends/cpu/split.h"
#include "backends/support/weights_check.h"
#include "base/arena.h"
#include "base/check.h"
#include "base/math.h"
#include "formats/format.h"
#include "formats/packed.h"
#include "kernels/elements.h"

namespace motet {
namespace {

/// fp32 copies of the biases of all experts of one body, expert by expert: gate, up, down, each where the body has it.
struct Biases {
  const float* begin = nullptr;
  std::int64_t gate = 0, up = 0, down = 0;  ///< elements; 0 = none
  const float* of(std::int64_t expert) const noexcept { return begin + expert * (gate + up + down); }
  const float* gate_of(std::int64_t expert) const noexcept { return gate == 0 ? nullptr : of(expert); }
  const float* up_of(std::int64_t expert) const noexcept { return up == 0 ? nullptr : of(expert) + gate; }
  const float* down_of(std::int64_t expert) const noexcept { return down == 0 ? nullptr : of(expert) + gate + up; }
};

/// How gate and up lie beside each other, so that GEMM1 can read them as one matrix of twice the rows.
enum class Pairing {
  none,
  rows,    ///< row n of up follows row n of gate
  panels,  ///< packed: panel p of up follows panel p of gate
};

/// One kind of feed-forward: the routed experts, or the shared one.
struct Body {
  const Activation* activation = nullptr;
  CpuProjection gate_up, down;
  Pairing pairing = Pairing::none;
  const ExpertView* experts = nullptr;
  std::int64_t gate_row_bytes = 0, down_row_bytes = 0;  ///< weights that one row of a phase reads
  std::int64_t act_stored = 0;
  Biases biases;
};

float bias_element(const ElementKernels& elements, const BiasView& bias, std::int64_t i) noexcept {
  float value = 0;
  elements.load_as_f32(bias.dtype, bias.data + i * bias.stride, 1, nullptr, &value);
  return value;
}

std::int64_t row_bytes(std::string_view format, std::int64_t cols) noexcept {
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(find_format(format)->facts.bits_per_value * static_cast<double>(cols) / 8));
}

/// Whether row n of `up` lies between rows n and n + 1 of `gate`, so that one stream reads both halves. Evidence (gpt-oss-20b in
/// MXFP4, one token, one core of a Zen 5, November 2026): 22 GB/s half by half, 33 GB/s as one matrix, of 43 GB/s that a probe
/// reads.
bool alternate(const WeightView& gate, const WeightView& up) noexcept {
  const auto between = [](const std::byte* first, const std::byte* second, std::int64_t stride) {
    return stride % 2 == 0 && second - first == stride / 2;
  };
  if (gate.panel_bytes > 0 || gate.rows != up.rows || gate.cols != up.cols || gate.row_stride != up.row_stride ||
      gate.col_stride != up.col_stride || !between(gate.codes, up.codes, gate.row_stride) || gate.tensor_scale != up.tensor_scale ||
      gate.zeros != nullptr || up.zeros != nullptr)
    return false;
  if (gate.scales == nullptr || up.scales == nullptr) return gate.scales == up.scales;
  return gate.block_rows == 1 && up.block_rows == 1 && gate.block_cols == up.block_cols && gate.scale_dtype == up.scale_dtype &&
         gate.scale_row_stride == up.scale_row_stride && gate.scale_col_stride == up.scale_col_stride &&
         between(gate.scales, up.scales, gate.scale_row_stride);
}

/// Both halves as the matrix that lies in memory: row 2n is gate's n, row 2n + 1 is up's; or so with panels of 16 rows.
WeightView both_halves(WeightView gate) noexcept {
  if (gate.panel_bytes > 0) {
    gate.rows = 2 * round_up(gate.rows, kPanelRows);
    gate.panel_bytes /= 2;
    return gate;
  }
  gate.rows *= 2;
  gate.row_stride /= 2;
  gate.scale_row_stride /= 2;
  return gate;
}

class CpuBackend final : public PreparedBackend {
 public:
  CpuBackend(const Plan& plan, std::shared_ptr<const LayerWeights> weights, const CpuKernels& kernels, Executor& executor)
      : weights_(std::move(weights)), kernels_(kernels), elements_(*find_elements(plan.target)), activation_(kernels.activation) {
    const LayerSpec& spec = weights_->spec;
    const CpuExtents extents{spec.experts, spec.intermediate, spec.shared.intermediate};
    scratch_ = cpu_scratch(kernels_, spec, extents);
    biases_.resize(static_cast<std::size_t>(bias_elements(spec, extents)));
    live_.resize(std::max<std::size_t>(1, weights_->experts.size()));  // the shared expert is a slot too
    const ExpertView *experts = weights_->experts.data(), *shared = &weights_->shared;
    const bool has_shared = spec.shared.intermediate > 0;
    if (plan.deployment.wishes.residence == Residence::packed) {
      arena_ =
          Arena(cpu_packed(spec, extents, Residence::packed).bytes, "the packed weights of layer " + std::to_string(spec.layer));
      std::byte* at = arena_.data();
      packed_ = pack_experts({*weights_, experts, spec.experts, spec.gate_up.format, spec.down.format}, at, executor);
      experts = packed_.experts.data();
      if (has_shared) {
        packed_shared_ = pack_experts({*weights_, shared, 1, spec.shared.gate_up.format, spec.shared.down.format}, at, executor);
        shared = packed_shared_.experts.data();
      }
      MOTET_CHECK(at == arena_.data() + arena_.bytes(), "%lld bytes of packed weights were planned, %lld written",
                  static_cast<long long>(arena_.bytes()), static_cast<long long>(at - arena_.data()));
    }
    float* next = biases_.data();
    routed_ = make_body({&spec.activation, kernels_.gate_up, kernels_.down, plan.stored(Axis::down_in)}, packed_.alternate, experts,
                        spec.experts, next);
    if (has_shared) {
      shared_ = make_body({&spec.shared.activation, kernels_.shared_gate_up, kernels_.shared_down, plan.stored(Axis::shared)},
                          packed_shared_.alternate, shared, 1, next);
    }
    if (weights_->router.codes != nullptr) check_layout("router", kernels_.router, weights_->router);
    MOTET_CHECK(next == biases_.data() + biases_.size(), "%lld bias elements were planned", static_cast<long long>(biases_.size()));
  }

  ByteSpan packed_weights() const noexcept override { return {arena_.data(), arena_.bytes()}; }
  std::int64_t prepared_bytes() const noexcept override {
    return static_cast<std::int64_t>(biases_.size() * sizeof(float) + live_.size() * sizeof(std::int32_t));
  }

  void prepare_rows(const ConstMatrix& source, const std::int32_t* index, const float* scale, std::int64_t first,
                    std::int64_t count, std::byte* out, std::int64_t out_stride, std::int64_t stored) const noexcept override {
    const std::int64_t element = bits_of(activation_) / 8, source_bytes = source.cols * bits_of(source.dtype) / 8;
    for (std::int64_t r = first; r < first + count; ++r) {
      const std::byte* from = static_cast<const std::byte*>(source.data) + (index == nullptr ? r : index[r]) * source_bytes;
      std::byte* to = out + r * out_stride;
      prepare_row(source, from, scale == nullptr ? nullptr : scale + r, to);
      std::memset(to + source.cols * element, 0, static_cast<std::size_t>((stored - source.cols) * element));
    }
  }

  void run_router(const ConstMatrix& hidden_states, float* logits, std::int64_t logits_stride, std::byte* scratch,
                  std::int64_t scratch_stride, Executor& executor) noexcept override {
    if (hidden_states.rows == 0) return;
    const std::int64_t experts = weights_->router.rows;
    const bool few = kernels_.router.max_few > 0;
    const std::int64_t chunk = few ? kernels_.router.max_few : kRouterManyTokens, chunks = ceil_div(hidden_states.rows, chunk);
    const std::int64_t weight_bytes = weights_->router.cols * 2;
    const Split rows = split(
        {.live = 1, .rows = experts, .row_bytes = weight_bytes, .threads = chunks > executor.threads() ? 1 : executor.threads()});
    struct Context {
      CpuBackend* self;
      const ConstMatrix* x;
      float* logits;
      std::int64_t logits_stride;
      std::byte* scratch;
      std::int64_t scratch_stride, chunk;
      bool few;
      Split rows;
    } context{this, &hidden_states, logits, logits_stride, scratch, scratch_stride, chunk, few, rows};
    executor.run(
        chunks * rows.blocks,
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const auto& here = *static_cast<const Context*>(opaque);
          CpuBackend& self = *here.self;
          std::byte* mine = here.scratch + thread * here.scratch_stride;
          const std::int64_t first = piece / here.rows.blocks * here.chunk, block = piece % here.rows.blocks;
          const std::int64_t tokens = std::min(here.chunk, here.x->rows - first), begin = here.rows.begin(block);
          std::byte* x = mine + self.scratch_.kernel;
          self.load_router_chunk(*here.x, first, tokens, x);
          self.multiply({.weight = &self.weights_->router,
                         .row_begin = begin,
                         .row_end = here.rows.end(block),
                         .x = x,
                         .x_stride = self.scratch_.router_stride,
                         .tokens = tokens,
                         .out = here.logits + first * here.logits_stride + begin,
                         .out_stride = here.logits_stride,
                         .scratch = mine},
                        self.kernels_.router, here.few);
        },
        &context);
  }

  void run_experts(const ExpertBatch& batch, Executor& executor) noexcept override { run_bodies(batch, routed_, executor); }
  void run_shared(const ExpertBatch& batch, Executor& executor) noexcept override { run_bodies(batch, shared_, executor); }
  void run_latent_in(const DenseBatch& batch, Executor& executor) noexcept override {
    run_latent(batch, weights_->latent_in, kernels_.latent_in, executor);
  }
  void run_latent_out(const DenseBatch& batch, Executor& executor) noexcept override {
    run_latent(batch, weights_->latent_out, kernels_.latent_out, executor);
  }

 private:
  struct BodyParts {
    const Activation* activation;
    const CpuProjection &gate_up, &down;
    std::int64_t act_stored;
  };

  std::int64_t copy_bias(const BiasView& bias, float*& next) const noexcept {
    if (bias.data == nullptr) return 0;
    for (std::int64_t i = 0; i < bias.count; ++i) *next++ = bias_element(elements_, bias, i);
    return bias.count;
  }

  /// The plan says `few` from the spec's layout: the views must be laid out so.
  static void check_layout(const char* role, const CpuProjection& projection, const WeightView& view) {
    if (projection.max_few > 0 && !projection.few->few_reads(view))
      throw Error(ErrorCode::wrong_shape, std::string(role) +
                                              " weights must be contiguous along the reduction axis, as the plan's spec says, "
                                              "but they lie transposed; load the weights with the plan's spec");
  }

  Body make_body(const BodyParts& parts, bool panels_alternate, const ExpertView* experts, std::int64_t count, float*& next) {
    Body body;
    body.activation = parts.activation;
    body.gate_up = parts.gate_up;
    body.down = parts.down;
    bool rows_alternate = parts.activation->gated;
    body.experts = experts;
    body.act_stored = parts.act_stored;
    body.biases.begin = next;
    if (count == 0) return body;  // a rank without experts
    body.gate_row_bytes = row_bytes(parts.gate_up.many->format, experts[0].up.cols) * (parts.activation->gated ? 2 : 1);
    body.down_row_bytes = row_bytes(parts.down.many->format, experts[0].down.cols);
    for (std::int64_t e = 0; e < count; ++e) {
      if (parts.activation->gated) check_layout("gate", parts.gate_up, experts[e].gate);
      check_layout("up", parts.gate_up, experts[e].up);
      check_layout("down", parts.down, experts[e].down);
      rows_alternate = rows_alternate && alternate(experts[e].gate, experts[e].up);
      body.biases.gate = copy_bias(experts[e].gate_bias, next);
      body.biases.up = copy_bias(experts[e].up_bias, next);
      body.biases.down = copy_bias(experts[e].down_bias, next);
    }
    body.pairing = panels_alternate ? Pairing::panels : rows_alternate ? Pairing::rows : Pairing::none;
    return body;
  }

  void prepare_row(const ConstMatrix& source, const std::byte* from, const float* scale, std::byte* to) const noexcept {
    if (source.dtype == activation_ && scale == nullptr) {
      std::memcpy(to, from, static_cast<std::size_t>(source.cols * bits_of(activation_) / 8));
    } else if (activation_ == DType::f32) {
      elements_.load_as_f32(source.dtype, from, source.cols, scale, reinterpret_cast<float*>(to));
    } else {
      constexpr std::int64_t kRun = 256;
      float run[kRun];
      for (std::int64_t k = 0; k < source.cols; k += kRun) {
        const std::int64_t count = std::min(kRun, source.cols - k);
        elements_.load_as_f32(source.dtype, from + k * bits_of(source.dtype) / 8, count, scale, run);
        elements_.store_as(activation_, run, count, to + k * bits_of(activation_) / 8);
      }
    }
  }

  void load_router_chunk(const ConstMatrix& source, std::int64_t first, std::int64_t count, std::byte* out) const noexcept {
    const std::int64_t source_bytes = source.cols * bits_of(source.dtype) / 8,
                       padded = round_up(source.cols, kernels_.router.many->k_unit);
    for (std::int64_t t = 0; t < count; ++t) {
      auto* row = reinterpret_cast<float*>(out + t * scratch_.router_stride);
      elements_.load_as_f32(source.dtype, static_cast<const std::byte*>(source.data) + (first + t) * source_bytes, source.cols,
                            nullptr, row);
      std::fill(row + source.cols, row + padded, 0.0f);
    }
  }

  static void multiply(const MatmulArgs& args, const CpuProjection& projection, bool few) noexcept {
    if (args.row_begin < args.row_end) projection.run(args, few);
  }

  void run_latent(const DenseBatch& batch, const WeightView& view, const CpuProjection& projection, Executor& executor) noexcept {
    if (batch.tokens == 0) return;
    struct Context {
      const DenseBatch* batch;
      const WeightView* view;
      const CpuProjection* projection;
      DType activation;
      Split rows;
    } context{&batch, &view, &projection, activation_,
              split({.live = 1,
                     .rows = view.rows,
                     .row_bytes = row_bytes(projection.many->format, view.cols),
                     .tokens = batch.tokens,
                     .threads = executor.threads()})};
    executor.run(
        context.rows.pieces(),
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const auto& here = *static_cast<const Context*>(opaque);
          const DenseBatch& dense = *here.batch;
          const std::int64_t begin = here.rows.begin(piece);
          multiply({.weight = here.view,
                    .row_begin = begin,
                    .row_end = here.rows.end(piece),
                    .x = dense.x,
                    .x_stride = dense.x_stride,
                    .x_dtype = here.activation,
                    .tokens = dense.tokens,
                    .out = dense.out + begin,
                    .out_stride = dense.out_stride,
                    .scratch = dense.scratch + thread * dense.scratch_stride},
                   *here.projection, false);
        },
        &context);
  }

  /// One phase of a batch: its split and what a piece needs.
  struct Phase {
    CpuBackend* self;
    const ExpertBatch* batch;
    const Body* body;
    Split split;
  };

  void run_bodies(const ExpertBatch& batch, const Body& body, Executor& executor) noexcept {
    std::int64_t live = 0;
    for (std::int64_t slot = 0; slot < batch.slots; ++slot) {
      if (batch.first_row[slot + 1] > batch.first_row[slot])
        live_[static_cast<std::size_t>(live++)] = static_cast<std::int32_t>(slot);
    }
    if (live == 0) return;
    const std::int64_t tokens = batch.first_row[batch.slots] - batch.first_row[0];
    const ExpertView& any = body.experts[0];
    Phase phase{this, &batch, &body,
                split({.live = live,
                       .rows = any.up.rows,
                       .row_bytes = body.gate_row_bytes,
                       .tokens = tokens,
                       .threads = executor.threads()})};
    executor.run(
        phase.split.pieces(),
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const auto& here = *static_cast<const Phase*>(opaque);
          here.self->gate_up_piece(here, piece, thread);
        },
        &phase);
    phase.split = split(
        {.live = live, .rows = any.down.rows, .row_bytes = body.down_row_bytes, .tokens = tokens, .threads = executor.threads()});
    executor.run(
        phase.split.pieces(),
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const auto& here = *static_cast<const Phase*>(opaque);
          here.self->down_piece(here, piece, thread);
        },
        &phase);
  }

  /// Rows of the batch that belong to a piece's slot.
  struct SlotRows {
    std::int64_t slot, first, count;
  };
  SlotRows rows_of(const Phase& phase, std::int64_t piece) const noexcept {
    const std::int64_t slot = live_[static_cast<std::size_t>(phase.split.slot(piece))], first = phase.batch->first_row[slot];
    return {slot, first, phase.batch->first_row[slot + 1] - first};
  }

  /// GEMM1 and the body for rows [begin, end) of the intermediate and all tokens of one slot, tile by tile.
  void gate_up_piece(const Phase& phase, std::int64_t piece, int thread) noexcept {
    const SlotRows rows = rows_of(phase, piece);
    const ExpertView& expert = phase.body->experts[rows.slot];
    const bool few = rows.count <= phase.body->gate_up.max_few;
    const std::int64_t tile_rows = few ? std::min(kFewTileRows, kTileElements / rows.count) : kManyTileRows;
    const std::int64_t begin = phase.split.begin(piece), end = phase.split.end(piece);
    for (std::int64_t t = 0; t < rows.count; t += kTileTokens) {
      for (std::int64_t n = begin; n < end; n += tile_rows) {
        gate_up_tile(phase, rows, {n, std::min(end, n + tile_rows), t, std::min(rows.count, t + kTileTokens), few, n > begin},
                     thread);
      }
    }
    if (end < expert.up.rows) return;
    const std::int64_t element = bits_of(activation_) / 8, padding = (phase.body->act_stored - expert.up.rows) * element;
    for (std::int64_t r = rows.first; r < rows.first + rows.count; ++r) {
      std::memset(phase.batch->act + r * phase.batch->act_stride + expert.up.rows * element, 0, static_cast<std::size_t>(padding));
    }
  }

  struct Tile {
    std::int64_t row_begin, row_end, token_begin, token_end;
    bool few, encoded;  // encoded: this thread's last call had the same tokens
  };

  void gate_up_tile(const Phase& phase, const SlotRows& rows, const Tile& tile, int thread) noexcept {
    const ExpertBatch& batch = *phase.batch;
    const Body& body = *phase.body;
    const ExpertView& expert = body.experts[rows.slot];
    const float *gate_bias = body.biases.gate_of(rows.slot), *up_bias = body.biases.up_of(rows.slot);
    std::byte* scratch = batch.scratch + thread * batch.scratch_stride;
    auto* gate = reinterpret_cast<float*>(scratch + scratch_.kernel);
    float* up = gate + kTileElements;
    const bool paired = body.pairing != Pairing::none;
    const std::int64_t width = tile.row_end - tile.row_begin, first = rows.first + tile.token_begin,
                       element = bits_of(activation_) / 8;
    const std::int64_t run = body.pairing == Pairing::panels ? kPanelRows : 1;  // neighbours of one half
    const std::int64_t both_width = 2 * round_up(width, run);
    const WeightView both = paired ? both_halves(expert.gate) : WeightView{};
    MatmulArgs args{.weight = paired ? &both : &expert.up,
                    .row_begin = tile.row_begin * (paired ? 2 : 1),
                    .row_end = paired ? 2 * tile.row_begin + both_width : tile.row_end,
                    .x = batch.x + first * batch.x_stride,
                    .x_stride = batch.x_stride,
                    .x_dtype = activation_,
                    .tokens = tile.token_end - tile.token_begin,
                    .out = paired ? gate : up,  // the two tiles are neighbours: together they hold the pairs
                    .out_stride = paired ? both_width : width,
                    .scratch = scratch,
                    .encoded = tile.encoded};
    if (body.activation->gated && !paired) {
      MatmulArgs gate_args = args;
      gate_args.weight = &expert.gate, gate_args.out = gate;
      multiply(gate_args, body.gate_up, tile.few);
      args.encoded = true;
    }
    multiply(args, body.gate_up, tile.few);
    float halves[2][kFewTileRows];
    static_assert(kFewTileRows >= kManyTileRows);
    for (std::int64_t t = 0; t < args.tokens; ++t) {
      float* gate_row = body.activation->gated ? gate + t * width : nullptr;
      float* up_row = up + t * width;
      if (paired) {
        gate_row = halves[0], up_row = halves[1];
        split_halves(gate + t * both_width, width, run, gate_row, up_row);
      }
      if (gate_bias != nullptr) add(gate_bias + tile.row_begin, width, gate_row);
      if (up_bias != nullptr) add(up_bias + tile.row_begin, width, up_row);
      elements_.apply_body(*body.activation, gate_row, up_row, width);
      elements_.store_as(activation_, up_row, width, batch.act + (first + t) * batch.act_stride + tile.row_begin * element);
    }
  }

  /// GEMM2 for rows [begin, end) of the output width and all tokens of one slot, straight into the result.
  void down_piece(const Phase& phase, std::int64_t piece, int thread) noexcept {
    const ExpertBatch& batch = *phase.batch;
    const SlotRows rows = rows_of(phase, piece);
    const ExpertView& expert = phase.body->experts[rows.slot];
    const float* bias = phase.body->biases.down_of(rows.slot);
    const std::int64_t begin = phase.split.begin(piece), end = phase.split.end(piece);
    float* out = batch.rows + rows.first * batch.rows_stride + begin;
    multiply({.weight = &expert.down,
              .row_begin = begin,
              .row_end = end,
              .x = batch.act + rows.first * batch.act_stride,
              .x_stride = batch.act_stride,
              .x_dtype = activation_,
              .tokens = rows.count,
              .out = out,
              .out_stride = batch.rows_stride,
              .scratch = batch.scratch + thread * batch.scratch_stride},
             phase.body->down, rows.count <= phase.body->down.max_few);
    for (std::int64_t t = 0; bias != nullptr && t < rows.count; ++t) add(bias + begin, end - begin, out + t * batch.rows_stride);
  }

  /// Runs of gate and up, one after the other, to `count` of each.
  static void split_halves(const float* both, std::int64_t count, std::int64_t run, float* gate, float* up) noexcept {
    if (run == 1) {
      for (std::int64_t n = 0; n < count; ++n) gate[n] = both[2 * n], up[n] = both[2 * n + 1];
      return;
    }
    for (std::int64_t n = 0; n < count; n += run) {
      const auto bytes = static_cast<std::size_t>(std::min(run, count - n)) * sizeof(float);
      std::memcpy(gate + n, both + 2 * n, bytes);
      std::memcpy(up + n, both + 2 * n + run, bytes);
    }
  }

  static void add(const float* bias, std::int64_t count, float* values) noexcept {
    for (std::int64_t i = 0; i < count; ++i) values[i] += bias[i];
  }

  std::shared_ptr<const LayerWeights> weights_;
  CpuKernels kernels_;
  const ElementKernels& elements_;
  DType activation_;
  CpuScratch scratch_;
  Arena arena_;  ///< packed weights
  PackedBody packed_, packed_shared_;
  Body routed_, shared_;
  std::vector<float> biases_;
  std::vector<std::int32_t> live_;  ///< slots that have rows in the running batch
};

}  // namespace

std::unique_ptr<PreparedBackend> prepare_cpu(const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights,
                                             Executor& executor) {
  check_weights(plan, rank, *weights);
  const CpuChoice choice = choose_kernels(plan.spec, plan.deployment, plan.environment, plan.target);
  MOTET_CHECK(choice.kernels.has_value(), "%s", choice.reason.c_str());
  return std::make_unique<CpuBackend>(plan, std::move(weights), *choice.kernels, executor);
}

}  // namespace motet
