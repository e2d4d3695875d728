// SPDX-License-Identifier: Apache-2.0
#include "formats/synthetic.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/math.h"
#include "base/numbers.h"
#include "formats/synthetic_draw.h"

namespace motet {
namespace {

/// The format, when its codes are drawn directly; null when values are drawn and encoded. Throws Error(not_supported).
const Format* drawn_format(const ProjectionSpec& spec) {
  const Format* format = find_format(spec.format);
  if (format == nullptr)
    throw Error(ErrorCode::not_supported, "synthetic weights: format '" + spec.format + "' is not built; see `motet list formats`");
  return format->synthetic.codes != nullptr ? format : nullptr;
}

struct SyntheticWeights final : LayerWeights {
  std::vector<std::unique_ptr<std::byte[]>> buffers;
  std::vector<std::unique_ptr<EncodedMatrix>> encoded;
};

std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (!checked_mul(a, b, &product))
    throw Error(ErrorCode::invalid_argument, "synthetic weights: " + std::to_string(a) + " x " + std::to_string(b) +
                                                 " bytes overflow 64 bits; give smaller extents");
  return product;
}

/// Rows of one file matrix that a view shows: first, first + step, ...; `part` numbers the halves.
struct Rows {
  std::int64_t first = 0, step = 1, count = 0, part = 0;
};

/// `count` matrices [rows, cols] of one projection behind each other, as one tensor of the file; transposed it is [cols, rows].
struct Stack {
  std::int64_t rows = 0, cols = 0, parts = 1, block_rows = 1, block_cols = 1;
  const Format* format = nullptr;
  bool transposed = false;
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::int64_t matrix_bytes = 0, scale_width = 0, scale_row_bytes = 0, scale_matrix_bytes = 0;
  double tensor_scale = 1;

  /// 0: several values per byte along the reduction axis.
  std::int64_t element_bytes() const { return is_packed(format->facts) ? 0 : format->facts.bytes_per_block; }
  std::int64_t row_bytes() const { return cols / format->facts.values_per_block * format->facts.bytes_per_block; }

  WeightView view(std::int64_t index, const Rows& shown) const {
    WeightView view;
    view.rows = shown.count;
    view.cols = cols;
    view.block_rows = block_rows;
    view.block_cols = block_cols;
    const std::int64_t element = element_bytes(), along_rows = transposed ? element : row_bytes();
    view.codes = codes + index * matrix_bytes + shown.first * along_rows;
    view.row_stride = along_rows * shown.step;
    view.col_stride = transposed ? element * rows : element;
    if (scales == nullptr) return view;
    view.scale_dtype = format->spellings.front().scale_dtypes.front();
    const bool by_row = block_rows == 1;
    const std::int64_t first = by_row ? shown.first : shown.part * ceil_div(shown.count, block_rows);
    view.scales = scales + index * scale_matrix_bytes + first * scale_row_bytes;
    view.scale_row_stride = scale_row_bytes * (by_row ? shown.step : 1);
    view.scale_col_stride = format->facts.scale_bytes;
    if (has_tensor_scale(*format)) view.tensor_scale = static_cast<float>(tensor_scale * (shown.part == 0 ? 1.0 : 1.25));
    return view;
  }
};

class Builder {
 public:
  Builder(SyntheticWeights& out, std::uint64_t seed) : out_(out), seed_(seed) {}

  /// `parts` is 2 when the rows are gate and up: block scales of several rows are then kept per half.
  Stack stack(const ProjectionSpec& spec, std::int64_t count, std::int64_t rows, std::int64_t cols, std::int64_t parts) {
    Stack stack;
    stack.rows = rows, stack.cols = cols, stack.parts = parts, stack.format = drawn_format(spec), stack.transposed = spec.transposed;
    const FormatFacts& facts = stack.format->facts;
    const SyntheticDraw& draw = stack.format->synthetic;
    if (parts < 1 || rows < parts || cols < 1 || count < 1) fail(spec, "rows, columns and experts must be at least 1", rows, cols);
    if (spec.block_rows < 0 || spec.block_cols < 0) fail(spec, "block extents must not be negative", spec.block_rows, spec.block_cols);
    stack.block_rows = spec.block_rows > 0 ? spec.block_rows : rows / parts;
    stack.block_cols = spec.block_cols > 0 ? spec.block_cols : cols;
    if (is_packed(facts) && spec.transposed)
      throw Error(ErrorCode::not_supported,
                  "synthetic weights: format '" + spec.format +
                      "' packs values along the reduction axis and has no transposed form; use transposed = false");
    if (cols % facts.values_per_block != 0 || (is_packed(facts) && cols % stack.block_cols != 0))
      fail(spec, "columns must be whole blocks of " + std::to_string(stack.block_cols), rows, cols);
    times(cols, facts.bytes_per_block);  // of a row of bytes
    stack.matrix_bytes = times(rows, stack.row_bytes());
    stack.codes = allocate(times(stack.matrix_bytes, count));
    const double target = 1.0 / (std::sqrt(static_cast<double>(cols)) * draw.codes_rms * kSyntheticOffsetRms);
    const int exponent = static_cast<int>(std::lround(std::log2(target)));
    const std::int64_t outer = spec.transposed ? cols : rows, inner = spec.transposed ? rows : cols;
    const std::int64_t run_bytes = stack.matrix_bytes / outer;
    SyntheticRandom random{next_seed()};
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t row = 0; row < outer; ++row)
        draw.codes(random, {stack.codes + i * stack.matrix_bytes + row * run_bytes, row + i * 3, inner, exponent});
    }
    if (!is_plain(facts)) fill_scales(stack, count, target);
    return stack;
  }

  /// A vector of `count` values in bf16 or f32: center + spread * uniform(-1, 1).
  BiasView vector(std::int64_t count, DType dtype, double center, double spread) {
    const std::int64_t bytes = dtype == DType::bf16 ? 2 : 4;
    std::byte* data = allocate(times(count, bytes));
    SyntheticRandom random{next_seed()};
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(center + spread * (2 * random.uniform() - 1));
      const std::uint16_t half = f32_to_bf16(value);
      std::memcpy(data + i * bytes, bytes == 2 ? static_cast<const void*>(&half) : static_cast<const void*>(&value),
                  static_cast<std::size_t>(bytes));
    }
    return {data, dtype, count, bytes};
  }

  /// One matrix of a format that does not draw codes: drawn values, encoded by the format.
  WeightView encode(const ProjectionSpec& spec, std::int64_t rows, std::int64_t cols) {
    if (spec.transposed)
      throw Error(ErrorCode::not_supported,
                  "synthetic weights: format '" + spec.format + "' is encoded row by row here; use transposed = false");
    if (rows < 1 || cols < 1) fail(spec, "rows and columns must be at least 1", rows, cols);
    std::vector<float> values(static_cast<std::size_t>(times(rows, cols)));
    SyntheticRandom random{next_seed()};
    const double scale = std::sqrt(3.0 / static_cast<double>(cols)) / kSyntheticOffsetRms;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        values[static_cast<std::size_t>(row * cols + col)] =
            static_cast<float>(std::ldexp(scale * (2 * random.uniform() - 1), synthetic_offset(row, col / kSyntheticRun)));
      }
    }
    auto matrix = std::make_unique<EncodedMatrix>();
    find_format(spec.format)->encode(values.data(), rows, cols, *matrix);
    out_.bytes += static_cast<std::int64_t>(matrix->codes.size() + matrix->scales.size());
    out_.encoded.push_back(std::move(matrix));
    return out_.encoded.back()->view;
  }

  std::byte* allocate(std::int64_t bytes) {
    constexpr std::int64_t kSlack = 128;  // a tensor of a file starts at 8 past a cache line as often as anywhere
    std::int64_t total = 0;
    if (!checked_add(bytes, kSlack, &total))
      throw Error(ErrorCode::invalid_argument, "synthetic weights: a tensor's bytes overflow 64 bits; give smaller extents");
    std::unique_ptr<std::byte[]> buffer(new (std::nothrow) std::byte[static_cast<std::size_t>(total)]);
    if (buffer == nullptr)
      throw Error(ErrorCode::would_not_fit,
                  "synthetic weights: " + std::to_string(bytes) + " bytes for one tensor are not to be had; give fewer experts");
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.get());
    std::byte* data = buffer.get() + ((64 - address % 64) % 64) + 8;
    out_.buffers.push_back(std::move(buffer));
    out_.bytes += bytes;
    return data;
  }

  std::uint64_t next_seed() noexcept { return SyntheticRandom{seed_ ^ (++streams_ * 0xD1B54A32D192ED03u)}.next(); }

 private:
  [[noreturn]] static void fail(const ProjectionSpec& spec, const std::string& rule, std::int64_t first, std::int64_t second) {
    throw Error(ErrorCode::invalid_argument, "synthetic weights: format '" + spec.format + "': " + rule + ", given " +
                                                 std::to_string(first) + " x " + std::to_string(second) +
                                                 "; correct the layer's spec");
  }

  void fill_scales(Stack& stack, std::int64_t count, double target) {
    const std::int64_t bytes = stack.format->facts.scale_bytes;
    const std::int64_t grid_rows = stack.block_rows == 1 ? stack.rows : stack.parts * ceil_div(stack.rows / stack.parts, stack.block_rows);
    stack.scale_width = ceil_div(stack.cols, stack.block_cols);
    stack.scale_row_bytes = stack.scale_width * bytes;
    stack.scale_matrix_bytes = times(grid_rows, stack.scale_row_bytes);
    stack.scales = allocate(times(stack.scale_matrix_bytes, count));
    const SyntheticDraw& draw = stack.format->synthetic;
    const bool with_tensor_scale = has_tensor_scale(*stack.format);  // which then carries the magnitude
    if (with_tensor_scale) stack.tensor_scale = target / draw.scales_rms;
    const int exponent = with_tensor_scale ? 0 : static_cast<int>(std::lround(std::log2(target)));
    SyntheticRandom random{next_seed()};
    std::byte* out = stack.scales;
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t row = 0; row < grid_rows; ++row) {
        for (std::int64_t col = 0; col < stack.scale_width; ++col, out += bytes)
          draw.scale(random, exponent + synthetic_offset(row + i * 3, col), out);
      }
    }
  }

  SyntheticWeights& out_;
  std::uint64_t seed_;
  std::uint64_t streams_ = 0;
};

struct BodyShape {
  std::int64_t width = 0, intermediate = 0;
  bool gated = true;
  GateUpOrder order = GateUpOrder::separate;
  const ProjectionSpec* gate_up = nullptr;
  const ProjectionSpec* down = nullptr;
};

void make_biases(Builder& builder, const BodyShape& shape, ExpertView& expert) {
  if (shape.gate_up->bias) {
    const std::int64_t halves = shape.gated ? 2 : 1, count = shape.intermediate;
    const BiasView all = builder.vector(times(halves, count), DType::bf16, 0, 0.25);
    const bool interleaved = shape.gated && shape.order == GateUpOrder::interleaved;
    const std::int64_t stride = interleaved ? 2 * all.stride : all.stride;
    if (shape.gated) expert.gate_bias = {all.data, all.dtype, count, stride};
    expert.up_bias = {all.data + (shape.gated ? (interleaved ? 1 : count) * all.stride : 0), all.dtype, count, stride};
  }
  if (shape.down->bias) expert.down_bias = builder.vector(shape.width, DType::bf16, 0, 0.25);
}

void make_gate_up(Builder& builder, const BodyShape& shape, ExpertView* experts, std::int64_t count) {
  const std::int64_t rows = shape.intermediate;
  if (drawn_format(*shape.gate_up) == nullptr) {
    for (std::int64_t e = 0; e < count; ++e) {
      if (shape.gated) experts[e].gate = builder.encode(*shape.gate_up, rows, shape.width);
      experts[e].up = builder.encode(*shape.gate_up, rows, shape.width);
    }
    return;
  }
  if (!shape.gated || shape.order == GateUpOrder::separate) {
    Stack gate;
    if (shape.gated) gate = builder.stack(*shape.gate_up, count, rows, shape.width, 1);
    Stack up = builder.stack(*shape.gate_up, count, rows, shape.width, 1);
    up.tensor_scale *= 1.25;  // the halves of published files need not agree
    for (std::int64_t e = 0; e < count; ++e) {
      if (shape.gated) experts[e].gate = gate.view(e, {0, 1, rows, 0});
      experts[e].up = up.view(e, {0, 1, rows, 0});
    }
    return;
  }
  const Stack both = builder.stack(*shape.gate_up, count, times(rows, 2), shape.width, 2);
  const bool halves = shape.order == GateUpOrder::halves;
  for (std::int64_t e = 0; e < count; ++e) {
    experts[e].gate = both.view(e, {0, halves ? 1 : 2, rows, 0});
    experts[e].up = both.view(e, {halves ? rows : 1, halves ? 1 : 2, rows, 1});
  }
}

/// One matrix per element of `views`.
void make_matrices(Builder& builder, const ProjectionSpec& spec, std::int64_t rows, std::int64_t cols, WeightView* const* views,
                   std::int64_t count) {
  if (drawn_format(spec) == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) *views[i] = builder.encode(spec, rows, cols);
    return;
  }
  const Stack stack = builder.stack(spec, count, rows, cols, 1);
  for (std::int64_t i = 0; i < count; ++i) *views[i] = stack.view(i, {0, 1, rows, 0});
}

void make_body(Builder& builder, const BodyShape& shape, ExpertView* experts, std::int64_t count) {
  make_gate_up(builder, shape, experts, count);
  std::vector<WeightView*> downs;
  for (std::int64_t e = 0; e < count; ++e) downs.push_back(&experts[e].down);
  make_matrices(builder, *shape.down, shape.width, shape.intermediate, downs.data(), count);
  for (std::int64_t e = 0; e < count; ++e) make_biases(builder, shape, experts[e]);
}

void make_router(Builder& builder, SyntheticWeights& out) {
  const LayerSpec& spec = out.spec;
  const std::int64_t rows = spec.experts + spec.router.zero_experts;
  const DType dtype = spec.router.weight_dtype;
  ProjectionSpec projection;
  projection.format = dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16";
  WeightView* router = &out.router;
  make_matrices(builder, projection, rows, spec.hidden, &router, 1);
  if (spec.router.logit_bias) out.router_bias = builder.vector(rows, DType::bf16, 0, 0.25);
  if (spec.router.selection_bias) out.selection_bias = builder.vector(rows, DType::f32, 0, 0.05);
  if (spec.router.per_expert_scale) out.per_expert_scale = builder.vector(spec.experts, DType::f32, 1, 0.25);
  if (spec.router.selection != RouterSelection::hash) return;
  constexpr std::int64_t kVocabulary = 1024;
  std::byte* table = builder.allocate(times(times(kVocabulary, spec.top_k), 8));
  SyntheticRandom random{builder.next_seed()};
  for (std::int64_t token = 0; token < kVocabulary; ++token) {
    const auto first = static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(spec.experts));
    for (std::int64_t k = 0; k < spec.top_k; ++k) {
      const std::int64_t expert = (first + k) % spec.experts;
      std::memcpy(table + (token * spec.top_k + k) * 8, &expert, 8);
    }
  }
  out.token_table = table;
  out.vocabulary = kVocabulary;
}

}  // namespace

std::shared_ptr<LayerWeights> make_synthetic_weights(const LayerSpec& spec, std::uint64_t seed) {
  constexpr std::int64_t kMostExperts = 1 << 20;
  if (spec.experts < 1 || spec.experts > kMostExperts || spec.hidden < 1 || spec.intermediate < 1 || spec.top_k < 1 ||
      spec.router.zero_experts < 0 || spec.router.zero_experts > kMostExperts) {
    throw Error(ErrorCode::invalid_argument,
                "synthetic weights: experts (at most 2^20), hidden, intermediate and top_k must be at least 1, given " +
                    std::to_string(spec.experts) + ", " + std::to_string(spec.hidden) + ", " + std::to_string(spec.intermediate) +
                    ", " + std::to_string(spec.top_k) + "; correct the layer's spec");
  }
  auto out = std::make_shared<SyntheticWeights>();
  out->spec = spec;
  Builder builder(*out, seed);
  out->experts.resize(static_cast<std::size_t>(spec.experts));
  make_body(builder,
            {spec.dispatch_width(), spec.intermediate, spec.activation.gated, spec.gate_up_order, &spec.gate_up, &spec.down},
            out->experts.data(), spec.experts);
  if (spec.shared.intermediate > 0) {
    make_body(builder,
              {spec.hidden, spec.shared.intermediate, spec.shared.activation.gated, spec.shared.gate_up_order, &spec.shared.gate_up,
               &spec.shared.down},
              &out->shared, 1);
    if (spec.shared.gate)
      out->shared_gate = builder.vector(spec.hidden, DType::bf16, 0, 1.0 / std::sqrt(static_cast<double>(spec.hidden)));
  }
  make_router(builder, *out);
  if (spec.latent > 0) {
    WeightView* in = &out->latent_in;
    WeightView* way_out = &out->latent_out;
    make_matrices(builder, spec.latent_in, spec.latent, spec.hidden, &in, 1);
    make_matrices(builder, spec.latent_out, spec.hidden, spec.latent, &way_out, 1);
    if (spec.latent_norm) out->latent_norm = builder.vector(spec.latent, DType::bf16, 1, 0.25);
  }
  return out;
}

}  // namespace motet
