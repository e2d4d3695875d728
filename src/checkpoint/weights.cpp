// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weights.h"

#include <cmath>
#include <map>

#include "base/dtype.h"
#include "checkpoint/layout.h"
#include "checkpoint/text.h"

namespace motet {
namespace {

class MappedLayer final : public LayerWeights {
 public:
  std::map<std::string, std::unique_ptr<MappedFile>> files;   ///< by file name
  RunStatus verify_unchanged() const noexcept override {
    for (const auto& entry : files) {
      if (const RunStatus status = entry.second->verify_unchanged(); !status.ok()) return status;
    }
    return {};
  }
  void drop(const std::byte* begin, std::int64_t size) const noexcept override {
    for (const auto& entry : files) entry.second->drop(begin, size);
  }
};

class Loader {
 public:
  Loader(const StoredLayer& layer, const TensorTable& table, const std::vector<SafetensorsFile>& files) : layer_(layer), table_(table) {
    std::map<std::string_view, const SafetensorsFile*> by_name;
    for (const SafetensorsFile& file : files) by_name[file.name] = &file;
    const auto map = [&](TensorIndex index) {
      const std::string& name = table[index].file;
      std::unique_ptr<MappedFile>& mapped = out_->files[name];
      if (!mapped) mapped = std::make_unique<MappedFile>(by_name.at(name)->path, name, by_name.at(name)->identity);
    };
    for (const TensorIndex index : layer.read) map(index);
    for (const TensorIndex index : layer.unused_biases) map(index);
  }

  std::shared_ptr<const LayerWeights> load() {
    const LayerSpec& spec = layer_.summary.spec;
    out_->spec = spec;
    for (const TensorIndex index : layer_.read) out_->bytes += table_[index].bytes;
    for (std::int64_t expert = 0; expert < spec.experts; ++expert) {
      out_->experts.push_back(body(layer_.experts, expert, spec.intermediate, "expert " + std::to_string(expert)));
    }
    if (!layer_.shared.empty()) out_->shared = body(layer_.shared, 0, spec.shared.intermediate, "shared expert");
    if (layer_.shared_gate != kNoTensor) out_->shared_gate = vector(layer_.shared_gate, 0, spec.hidden);
    out_->router = view(layer_.router, 0, {0, 1, layer_.router.rows});
    check_finite(layer_.router.tensors.codes, 0, layer_.router.rows * layer_.router.cols);
    if (spec.router.logit_bias) out_->router_bias = vector(layer_.router.tensors.bias, 0, spec.experts);
    if (layer_.selection_bias != kNoTensor) out_->selection_bias = vector(layer_.selection_bias, 0, spec.experts);
    if (spec.latent > 0) {
      out_->latent_in = checked_view(layer_.latent_in, 0, {0, 1, spec.latent}, "latent_in");
      out_->latent_out = checked_view(layer_.latent_out, 0, {0, 1, spec.hidden}, "latent_out");
    }
    for (const TensorIndex index : layer_.unused_biases) check_zero(index);
    return out_;
  }

 private:
  const std::byte* bytes(TensorIndex index) const {
    const TensorInfo& tensor = table_[index];
    return out_->files.at(tensor.file)->data() + tensor.offset;
  }

  WeightView view(const StoredMatrix& matrix, std::int64_t expert, RowSlice rows) const {
    const MatrixTensors& tensors = matrix.tensors;
    const Strides codes = code_strides(table_, matrix), scales = scale_strides(table_, matrix);
    WeightView out;
    out.codes = bytes(tensors.codes) + expert * codes.expert + rows.begin * codes.row;
    out.rows = rows.count;
    out.cols = matrix.cols;
    out.row_stride = rows.step * codes.row;
    out.col_stride = codes.col;
    const ScaleBlock block = scale_block(matrix);
    out.block_rows = block.rows;
    out.block_cols = block.cols;
    if (tensors.scales != kNoTensor) {     // a half begins with a block of its own, and interleaved ones have blocks of one row
      out.scales = bytes(tensors.scales) + expert * scales.expert + rows.begin / block.rows * scales.row;
      out.scale_dtype = tensors.scale_dtype;
      out.scale_row_stride = rows.step * scales.row;
      out.scale_col_stride = scales.col;
    }
    if (tensors.tensor_scale != kNoTensor) out.tensor_scale = tensor_scale(tensors);
    return out;
  }

  double tensor_scale(const MatrixTensors& tensors) const {
    const double stored = load_as_f64(DType::f32, bytes(tensors.tensor_scale));
    if (!std::isfinite(stored) || stored <= 0) {
      fail(ErrorCode::bad_input, "tensor ", quote(table_[tensors.tensor_scale].name), " (a tensor scale) is ", stored, " and must be finite and above 0: the checkpoint is broken; fetch it again");
    }
    return tensors.spelling->reciprocal ? 1.0 / stored : stored;
  }

  WeightView checked_view(const StoredMatrix& matrix, std::int64_t expert, RowSlice rows, const std::string& what) const {
    const WeightView out = view(matrix, expert, rows);
    if (!out.scales) return out;
    if (const auto broken = matrix.tensors.built->check_values(out)) {
      fail(ErrorCode::bad_input, "tensor ", quote(table_[matrix.tensors.scales].name), " (", what, "): ", *broken, ": the checkpoint is broken; fetch it again");
    }
    return out;
  }

  /// `count` values of a vector tensor, checked finite.
  BiasView vector(TensorIndex index, std::int64_t first, std::int64_t count, std::int64_t step = 1) const {
    const DType dtype = table_[index].dtype;
    const std::int64_t element = bytes_of(dtype);
    const BiasView out{bytes(index) + first * element, dtype, count, step * element};
    for (std::int64_t i = 0; i < count; ++i) check_one(index, first + i * step, load_as_f64(dtype, out.data + i * out.stride));
    return out;
  }

  void check_one(TensorIndex index, std::int64_t at, double value) const {
    if (std::isfinite(value)) return;
    fail(ErrorCode::bad_input, "tensor ", quote(table_[index].name), ": element ", at, " is ", value, " and must be finite: the checkpoint is broken; fetch it again");
  }

  void check_finite(TensorIndex index, std::int64_t first, std::int64_t count) const { vector(index, first, count); }

  void check_zero(TensorIndex index) const {
    const TensorInfo& tensor = table_[index];
    const std::byte* const data = bytes(index);
    const std::int64_t element = bytes_of(tensor.dtype);
    for (std::int64_t i = 0; i < tensor.bytes / element; ++i) {
      if (const double value = load_as_f64(tensor.dtype, data + i * element); value != 0) {
        fail(ErrorCode::bad_input, "tensor ", quote(tensor.name), ": element ", i, " is ", value, ", but family ", layer_.summary.spec.family,
             " has no such bias, so that it must be 0 or absent: the model would run without it");
      }
    }
  }

  /// Gate, up and down of one expert from stacks or from tensors of its own.
  ExpertView body(const StoredBody& stored, std::int64_t expert, std::int64_t intermediate, const std::string& who) const {
    ExpertView out;
    const auto pick = [&](const std::vector<StoredMatrix>& list) -> const StoredMatrix& { return list.size() == 1 ? list.front() : list[static_cast<std::size_t>(expert)]; };
    const auto place = [&](const StoredMatrix& matrix, RowSlice rows, const char* part, WeightView& weight, BiasView& bias, bool with_bias) {
      const std::int64_t index = matrix.stacked ? expert : 0;
      weight = checked_view(matrix, index, rows, who + ", " + part);
      if (with_bias) bias = vector(matrix.tensors.bias, index * matrix.rows + rows.begin, rows.count, rows.step);
    };
    const LayerSpec& spec = layer_.summary.spec;
    const bool routed = &stored == &layer_.experts;
    const bool gate_up_bias = routed ? spec.gate_up.bias : spec.shared.gate_up.bias;
    if (!stored.gate_up.empty()) {
      place(pick(stored.gate_up), gate_rows(stored.order, intermediate), "gate", out.gate, out.gate_bias, gate_up_bias);
      place(pick(stored.gate_up), up_rows(stored.order, intermediate), "up", out.up, out.up_bias, gate_up_bias);
    } else {
      if (!stored.gate.empty()) place(pick(stored.gate), {0, 1, intermediate}, "gate", out.gate, out.gate_bias, gate_up_bias);
      place(pick(stored.up), {0, 1, intermediate}, "up", out.up, out.up_bias, gate_up_bias);
    }
    const StoredMatrix& down = pick(stored.down);
    place(down, {0, 1, down.rows}, "down", out.down, out.down_bias, routed ? spec.down.bias : spec.shared.down.bias);
    return out;
  }

  const StoredLayer& layer_;
  const TensorTable& table_;
  std::shared_ptr<MappedLayer> out_ = std::make_shared<MappedLayer>();
};

}  // namespace

std::shared_ptr<const LayerWeights> load_layer(const StoredLayer& layer, const TensorTable& table, const std::vector<SafetensorsFile>& files) {
  if (!layer.not_built.empty()) fail(ErrorCode::not_supported, "layer ", layer.summary.spec.layer, " cannot be loaded: ", layer.not_built);
  return Loader(layer, table, files).load();
}

}  // namespace motet
