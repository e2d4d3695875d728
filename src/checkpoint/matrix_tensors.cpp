// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/matrix_tensors.h"

#include <algorithm>

#include "base/math.h"
#include "checkpoint/text.h"
#include "formats/format.h"

namespace motet {
namespace {

/// The tensors of a module by suffix. A stack has "X", "X.weight", "X_blocks" or "X_bias"; a module "X.weight", "X.bias", ...
class Suffixes {
 public:
  Suffixes(const TensorTable& table, const MatrixWish& wish) : table_(table) {
    const auto [first, last] = table.below(wish.module);
    for (const TensorIndex* at = first; at != last; ++at) {
      std::string_view suffix = std::string_view(table[*at].name).substr(wish.module.size());
      if (suffix.empty()) suffix = "weight";
      else if (suffix[0] == '.' || (suffix[0] == '_' && wish.stacked)) suffix.remove_prefix(1);
      else continue;
      found_.emplace_back(suffix, *at);
    }
  }
  TensorIndex at(std::string_view suffix) const {
    for (const auto& [name, index] : found_) if (name == suffix) return index;
    return kNoTensor;
  }
  bool has(std::string_view suffix) const { return at(suffix) != kNoTensor; }
  bool has(std::string_view suffix, std::initializer_list<DType> dtypes) const {
    const TensorIndex index = at(suffix);
    return index != kNoTensor && std::find(dtypes.begin(), dtypes.end(), table_[index].dtype) != dtypes.end();
  }
  bool any_begins(std::string_view head) const {
    return std::any_of(found_.begin(), found_.end(), [&](const auto& entry) { return entry.first.substr(0, head.size()) == head; });
  }
  bool empty() const { return found_.empty(); }
  const std::string& first_name() const { return table_[found_.front().second].name; }

 private:
  const TensorTable& table_;
  std::vector<std::pair<std::string_view, TensorIndex>> found_;
};

[[noreturn]] void not_built(const std::string& tensor, std::string_view format) {
  fail(ErrorCode::not_supported, "format ", format, " of tensor ", quote(tensor), " is not built: take a release of the model in a format of 'motet list formats'");
}

/// The name of a quantised form that has no reader here, by the marks it leaves; "" = none of them.
std::string_view foreign_format(const Suffixes& tensors, const QuantizationHints& hints) {
  if (tensors.any_begins("weight.quant_state") || tensors.has("weight.absmax")) return "bitsandbytes";
  if (tensors.has("qweight")) return hints.method == "gptq" ? "gptq" : hints.method == "awq" ? "awq" : "int4 (awq or gptq)";
  if (tensors.has("pre_quant_scale")) return tensors.has("weight_scale_2") ? "nvfp4_awq" : "int4 (modelopt awq)";
  if (tensors.has("weight_packed") && tensors.has("weight_scale") && !tensors.has("weight_global_scale") &&
      !tensors.has("weight_scale", {DType::u8, DType::f8_e8m0})) return "int4 (pack-quantized)";
  if (tensors.has("weight", {DType::f8_e4m3})) {
    const bool e8m0 = !hints.block && (tensors.has("weight_scale_inv", {DType::f8_e8m0}) || tensors.has("weight_scale", {DType::f8_e8m0}));
    if (e8m0 || tensors.has("weight_scale_inv", {DType::u8}) || tensors.has("weight_scale", {DType::u8})) return "mxfp8";
    if (tensors.has("weight_scale") && !hints.block) return "fp8 (per tensor or channel)";
    if (!tensors.has("weight_scale") && !tensors.has("weight_scale_inv")) return "fp8 (without a scale)";
  }
  if (tensors.has("weight", {DType::i8}) && tensors.has("weight_scale", {DType::f32, DType::bf16, DType::f16})) return "int8";
  if (tensors.has("weight", {DType::f8_e5m2, DType::f8_e4m3fnuz, DType::f8_e5m2fnuz})) return "fp8 (other than E4M3FN)";
  return "";
}

/// Format and tensors by the suffixes and dtypes that are there (the dispatch of published spellings).
MatrixTensors decide(const TensorTable& table, const Suffixes& tensors, const MatrixWish& wish, const QuantizationHints& hints) {
  if (const std::string_view foreign = foreign_format(tensors, hints); !foreign.empty()) not_built(tensors.first_name(), foreign);
  MatrixTensors matrix;
  matrix.bias = tensors.at("bias");
  const auto four_bit = [&](std::string_view format, std::int64_t group, std::string_view codes, std::string_view scales) {
    matrix.format = format;
    matrix.block_cols = group;
    matrix.codes = tensors.at(codes);
    matrix.scales = tensors.at(scales);
  };
  if (tensors.has("blocks") || tensors.has("scales")) {
    four_bit("mxfp4", 32, "blocks", "scales");
    matrix.stack_axes = true;
  } else if (tensors.has("weight_packed") && tensors.has("weight_global_scale")) {
    four_bit("nvfp4", 16, "weight_packed", "weight_scale");
    matrix.tensor_scale = tensors.at("weight_global_scale");
    matrix.reciprocal = true;
    matrix.input_scale = tensors.at("input_global_scale");
  } else if (tensors.has("weight_packed")) {
    four_bit("mxfp4", 32, "weight_packed", "weight_scale");
  } else if (tensors.has("weight", {DType::u8, DType::i8}) && (tensors.has("weight_scale_2") || tensors.has("weight_scale", {DType::f8_e4m3}))) {
    four_bit("nvfp4", 16, "weight", "weight_scale");
    matrix.tensor_scale = tensors.at("weight_scale_2");
    matrix.input_scale = tensors.at("input_scale");
  } else if (tensors.has("weight", {DType::u8, DType::i8})) {
    four_bit("mxfp4", 32, "weight", "weight_scale");
    matrix.input_scale = tensors.at("input_scale");
  } else if (tensors.has("weight", {DType::f8_e4m3})) {
    matrix.format = "fp8_block";
    matrix.codes = tensors.at("weight");
    matrix.scales = tensors.has("weight_scale_inv") ? tensors.at("weight_scale_inv") : tensors.at("weight_scale");
    if (!hints.block) {
      fail(ErrorCode::bad_input, "tensor ", quote(table[matrix.codes].name), " is FP8 with block scales but ", hints.where.empty() ? "config.json" : hints.where,
           " has no 'weight_block_size': the block size is never guessed from shapes; take the config.json that belongs to the weights");
    }
    std::tie(matrix.block_rows, matrix.block_cols) = *hints.block;
  } else if (tensors.has("weight")) {
    matrix.codes = tensors.at("weight");
    const DType dtype = table[matrix.codes].dtype;
    matrix.format = dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : dtype == DType::f16 ? "f16" : "";
    if (matrix.format.empty()) {
      fail(ErrorCode::bad_input, "tensor ", quote(table[matrix.codes].name), " is ", name_of(dtype), " without the scales of a quantised format, and a weight is F32, BF16, F16 or quantised");
    }
  }
  for (const std::string_view suffix : {"activation_scale", "weight_shape", "input_scale"}) {
    const TensorIndex index = tensors.at(suffix);
    if (index != kNoTensor && index != matrix.input_scale && !matrix.format.empty()) matrix.carried.push_back(index);
  }
  if (matrix.codes == kNoTensor && !matrix.format.empty()) fail(ErrorCode::bad_input, "the codes of ", quote(wish.module), " are missing beside ", quote(tensors.first_name()), ": fetch the checkpoint again");
  return matrix;
}

std::vector<std::int64_t> with_experts(const MatrixWish& wish, std::vector<std::int64_t> shape) {
  if (wish.stacked) shape.insert(shape.begin(), wish.experts);
  return shape;
}

void check_dtype(const TensorInfo& tensor, std::initializer_list<DType> dtypes, std::string_view role) {
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end()) return;
  std::string list;
  for (const DType dtype : dtypes) list += (list.empty() ? "" : " or ") + std::string(name_of(dtype));
  fail(ErrorCode::bad_input, "tensor ", quote(tensor.name), " is ", name_of(tensor.dtype), " but ", role, " must be ", list, ": the file is not what its names say; fetch it again");
}

/// Rank 0 and [1] are alike.
void check_scalar(const TensorInfo& tensor) {
  check_dtype(tensor, {DType::f32}, "a tensor scale");
  if (tensor.shape.empty() || tensor.shape == std::vector<std::int64_t>{1}) return;
  fail(ErrorCode::bad_input, "tensor ", quote(tensor.name), " has shape ", shape_text(tensor.shape), " but a tensor scale has [] or [1]");
}

/// Where expected shapes come from; the sentence is made when it is needed.
auto why_of(const MatrixTensors& matrix, const MatrixWish& wish, const QuantizationHints& hints) {
  return [&matrix, &wish, &hints] {
    std::string out = text_of(matrix.format, ", ", wish.rows, " rows x ", wish.cols, " columns by config.json");
    if (matrix.scales != kNoTensor) out += text_of(", blocks of ", matrix.block_rows, " x ", matrix.block_cols, hints.where.empty() ? "" : " by " + hints.where);
    return out;
  };
}

void check_four_bit(const TensorTable& table, const MatrixTensors& matrix, const MatrixWish& wish, const QuantizationHints& hints) {
  const std::int64_t group = matrix.block_cols;
  const TensorInfo& codes = table[matrix.codes];
  if (wish.cols % group != 0) {
    fail(ErrorCode::bad_input, "tensor ", quote(codes.name), ": the reduction axis of ", wish.cols, " is no multiple of the ", matrix.format, " group of ", group, ": config.json and weights do not belong together");
  }
  const auto& groups = hints.float4_groups;
  if (!groups.empty() && std::find(groups.begin(), groups.end(), group) == groups.end()) {
    fail(ErrorCode::bad_input, hints.where, " says groups of ", groups.front(), " but tensor ", quote(codes.name), " is ", matrix.format, ", whose groups are ", group, ": take the config.json that belongs to the weights");
  }
  if (matrix.format == "mxfp4" && !codes.shape.empty() && codes.shape.back() == wish.cols / 4 * 3) not_built(codes.name, "mxfp6");
  check_dtype(codes, {DType::u8, DType::i8, DType::f4}, "a packed 4-bit weight");
  const std::int64_t packed = codes.dtype == DType::f4 ? wish.cols : wish.cols / 2;
  check_shape(codes, matrix.stack_axes ? with_experts(wish, {wish.rows, wish.cols / group, group / 2}) : with_experts(wish, {wish.rows, packed}), why_of(matrix, wish, hints));
  const TensorInfo& scales = table[matrix.scales];
  if (matrix.format == "mxfp4") check_dtype(scales, {DType::u8, DType::f8_e8m0}, "an E8M0 scale");
  else check_dtype(scales, {DType::f8_e4m3}, "an NVFP4 block scale");
  check_shape(scales, with_experts(wish, {wish.rows, wish.cols / group}), why_of(matrix, wish, hints));
}

}  // namespace

void check_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape, const std::function<std::string()>& why) {
  if (tensor.shape == shape) return;
  fail(ErrorCode::bad_input, "tensor ", quote(tensor.name), " has shape ", shape_text(tensor.shape), " and must have ", shape_text(shape), " (", why(),
       "): config.json and weights do not belong together, or the file is broken");
}

void check_float(const TensorInfo& tensor) { check_dtype(tensor, {DType::f32, DType::bf16, DType::f16}, "this tensor"); }

MatrixTensors find_matrix(const TensorTable& table, const MatrixWish& wish, const QuantizationHints& hints) {
  const Suffixes tensors(table, wish);
  if (tensors.empty()) return {};
  MatrixTensors matrix = decide(table, tensors, wish, hints);
  if (matrix.format.empty()) return matrix;
  if (!find_format(matrix.format)) not_built(table[matrix.codes].name, matrix.format);
  const bool plain = matrix.format == "f32" || matrix.format == "bf16" || matrix.format == "f16";
  if (wish.stacked && !plain && !matrix.stack_axes) not_built(table[matrix.codes].name, text_of("stacked ", matrix.format));
  if (!plain && matrix.scales == kNoTensor) fail(ErrorCode::bad_input, "the block scales of tensor ", quote(table[matrix.codes].name), " (", matrix.format, ") are missing: fetch the checkpoint again");
  const auto why = why_of(matrix, wish, hints);
  if (plain) {
    check_shape(table[matrix.codes], with_experts(wish, wish.transposed ? std::vector{wish.cols, wish.rows} : std::vector{wish.rows, wish.cols}), why);
  } else if (matrix.format == "fp8_block") {
    check_shape(table[matrix.codes], with_experts(wish, {wish.rows, wish.cols}), why);
    check_dtype(table[matrix.scales], {DType::f32, DType::bf16, DType::f8_e8m0}, "an FP8 block scale");
    check_shape(table[matrix.scales], {ceil_div(wish.rows, matrix.block_rows), ceil_div(wish.cols, matrix.block_cols)},
                why);
  } else {
    check_four_bit(table, matrix, wish, hints);
  }
  if (matrix.format == "nvfp4") {
    if (matrix.tensor_scale == kNoTensor) fail(ErrorCode::bad_input, "the tensor scale of ", quote(table[matrix.codes].name), " (nvfp4) is missing: fetch the checkpoint again");
    check_scalar(table[matrix.tensor_scale]);
    if (matrix.input_scale != kNoTensor) check_scalar(table[matrix.input_scale]);
  }
  return matrix;
}

}  // namespace motet
