// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/byte_ranges.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/math.h"
#include "checkpoint/layout.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

struct Span {
  std::int64_t begin = 0, count = 0;
  std::int64_t end() const { return begin + count; }
};

/// Bytes of a packed row that hold these columns.
Span packed_bytes(Span cols, const FormatFacts& facts) {
  const std::int64_t begin = cols.begin * facts.bytes_per_block / facts.values_per_block;
  return {begin, ceil_div(cols.end() * facts.bytes_per_block, facts.values_per_block) - begin};
}

/// `count` repetitions, `stride` bytes apart.
struct Dimension {
  std::int64_t count = 1, stride = 0;
};

class RangeWriter {
 public:
  RangeWriter(const TensorTable& table, std::vector<ByteRange>& out) : table_(table), out_(out) {}

  void whole(TensorIndex index, const std::string& what) {
    if (index != kNoTensor) box(index, 0, table_[index].bytes, {}, what);
  }

  void whole(const StoredMatrix& matrix, const std::string& what) {
    whole(matrix.tensors.codes, what);
    whole(matrix.tensors.scales, what + " scales");
    whole(matrix.tensors.tensor_scale, what + " tensor scale");
  }

  /// Rows x columns of some experts of a stack (or of the one matrix), codes, scales, tensor scale.
  void matrix(const StoredMatrix& matrix, Span experts, Span rows, Span cols, const std::string& part, const std::string& who) {
    if (experts.count == 0 || rows.count == 0 || cols.count == 0) return;
    const bool all_cols = cols.count == matrix.cols;
    const std::string what = text_of(part, all_cols ? " rows " : " columns ", all_cols ? rows.begin : cols.begin, "..", (all_cols ? rows : cols).end() - 1, " of ", who);
    const Strides codes = code_strides(table_, matrix);
    const FormatFacts& facts = matrix.tensors.built->facts;
    if (is_packed(facts)) grid(matrix.tensors.codes, experts, rows, packed_bytes(cols, facts), codes, 1, what);
    else grid(matrix.tensors.codes, experts, rows, cols, codes, facts.bytes_per_block, what);
    if (matrix.tensors.scales != kNoTensor) {
      const ScaleBlock block = scale_block(matrix);
      const auto blocks = [](Span span, std::int64_t each) { return Span{span.begin / each, ceil_div(span.end(), each) - span.begin / each}; };
      grid(matrix.tensors.scales, experts, blocks(rows, block.rows), blocks(cols, block.cols), scale_strides(table_, matrix),
           bytes_of(table_[matrix.tensors.scales].dtype), "scales of " + what);
    }
    if (matrix.tensors.tensor_scale != kNoTensor) whole(matrix.tensors.tensor_scale, "tensor scale of " + what);
  }

  void bias(const StoredMatrix& matrix, Span experts, Span rows, const std::string& part, const std::string& who) {
    const std::int64_t element = bytes_of(table_[matrix.tensors.bias].dtype);
    grid(matrix.tensors.bias, experts, {0, 1}, rows, {matrix.rows * element, 0, element}, element, text_of(part, " bias ", rows.begin, "..", rows.end() - 1, " of ", who));
  }

 private:
  void grid(TensorIndex index, Span experts, Span rows, Span cols, Strides strides, std::int64_t unit, const std::string& what) {
    if (experts.count == 0 || rows.count == 0 || cols.count == 0) return;
    const std::int64_t col = strides.col == 0 ? unit : strides.col;
    box(index, experts.begin * strides.expert + rows.begin * strides.row + cols.begin * col, unit,
        {{experts.count, strides.expert}, {rows.count, strides.row}, {cols.count, col}}, what);
  }

  /// Merges what lies one after another; emits one range per repetition of what does not merge into a single stride.
  void box(TensorIndex index, std::int64_t offset, std::int64_t run, std::vector<Dimension> dimensions, const std::string& what) {
    std::erase_if(dimensions, [](const Dimension& dimension) { return dimension.count == 1; });
    std::sort(dimensions.begin(), dimensions.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
    std::vector<Dimension> merged;
    for (const Dimension& dimension : dimensions) {
      if (merged.empty() && dimension.stride == run) run *= dimension.count;
      else if (!merged.empty() && dimension.stride == merged.back().count * merged.back().stride) merged.back().count *= dimension.count;
      else merged.push_back(dimension);
    }
    emit(index, table_[index].offset + offset, run, merged, merged.size(), what);
  }

  void emit(TensorIndex index, std::int64_t offset, std::int64_t run, const std::vector<Dimension>& dimensions, std::size_t depth, const std::string& what) {
    if (depth <= 1) {
      const TensorInfo& tensor = table_[index];
      ByteRange range{.tensor = tensor.name, .file = tensor.file, .offset = offset, .bytes = run, .count = 1, .stride = 0, .what = what};
      if (depth == 1) { range.count = dimensions[0].count; range.stride = dimensions[0].stride; }
      out_.push_back(std::move(range));
      return;
    }
    const Dimension outer = dimensions[depth - 1];
    for (std::int64_t i = 0; i < outer.count; ++i) emit(index, offset + i * outer.stride, run, dimensions, depth - 1, what);
  }

  const TensorTable& table_;
  std::vector<ByteRange>& out_;
};

struct BodyRanges {
  Span experts, intermediate;
  bool gate_up_bias = false, down_bias = false;
  std::int64_t half = 0;               ///< rows of a half
  std::string prefix;                  ///< "shared " or ""
};

void write_gate_up(RangeWriter& writer, const StoredMatrix& matrix, GateUpOrder order, const BodyRanges& wish, Span experts, const std::string& who) {
  const auto rows = [&](Span span, const char* part) {
    writer.matrix(matrix, experts, span, {0, matrix.cols}, wish.prefix + part, who);
    if (wish.gate_up_bias && span.count > 0) writer.bias(matrix, experts, span, wish.prefix + part, who);
  };
  if (order == GateUpOrder::interleaved) return rows({2 * wish.intermediate.begin, 2 * wish.intermediate.count}, "gate_up");
  rows(wish.intermediate, "gate");
  rows({wish.half + wish.intermediate.begin, wish.intermediate.count}, "up");
}

void write_body(RangeWriter& writer, const StoredBody& body, const BodyRanges& wish) {
  const bool stacked = body.down.front().stacked;
  const std::int64_t first = stacked ? 0 : wish.experts.begin, last = stacked ? 1 : wish.experts.end();
  for (std::int64_t at = first; at < last; ++at) {
    const auto index = static_cast<std::size_t>(at);
    const Span experts = stacked ? wish.experts : Span{0, 1};
    const std::string who = !wish.prefix.empty() ? "the shared expert" : !stacked ? text_of("expert ", at) : text_of("expert ", experts.begin, "..", experts.end() - 1);
    if (!body.gate_up.empty()) write_gate_up(writer, body.gate_up[index], body.order, wish, experts, who);
    for (const auto& [list, part] : {std::pair{&body.gate, "gate"}, std::pair{&body.up, "up"}}) {
      if (list->empty()) continue;
      writer.matrix((*list)[index], experts, wish.intermediate, {0, (*list)[index].cols}, wish.prefix + part, who);
      if (wish.gate_up_bias && wish.intermediate.count > 0) writer.bias((*list)[index], experts, wish.intermediate, wish.prefix + part, who);
    }
    const StoredMatrix& down = body.down[index];
    writer.matrix(down, experts, {0, down.rows}, wish.intermediate, wish.prefix + "down", who);
    if (wish.down_bias) writer.bias(down, experts, {0, down.rows}, wish.prefix + "down", who);
  }
}

}  // namespace

std::vector<ByteRange> ranges_of(const StoredLayer& layer, const TensorTable& table, const RankSlice& slice) {
  std::vector<ByteRange> out;
  RangeWriter writer(table, out);
  const LayerSpec& spec = layer.summary.spec;
  writer.whole(layer.router, "router");
  if (spec.router.logit_bias) writer.whole(layer.router.tensors.bias, "router bias");
  writer.whole(layer.selection_bias, "selection bias");
  if (slice.expert_count > 0) {
    write_body(writer, layer.experts, {.experts = {slice.expert_begin, slice.expert_count}, .intermediate = {slice.intermediate_begin, slice.intermediate_valid},
                                       .gate_up_bias = spec.gate_up.bias, .down_bias = spec.down.bias && slice.down_bias, .half = spec.intermediate, .prefix = ""});
  }
  if (!layer.shared.empty()) {
    write_body(writer, layer.shared, {.experts = {0, 1}, .intermediate = {slice.shared_begin, slice.shared_valid}, .gate_up_bias = spec.shared.gate_up.bias,
                                      .down_bias = spec.shared.down.bias && slice.shared_bias, .half = spec.shared.intermediate, .prefix = "shared "});
  }
  writer.whole(layer.shared_gate, "gate of the shared expert");
  if (spec.latent > 0) {
    writer.whole(layer.latent_in, "latent_in");
    writer.whole(layer.latent_out, "latent_out");
  }
  return out;
}

}  // namespace motet
