// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/matrix_tensors.h"

#include <algorithm>

#include "base/math.h"
#include "checkpoint/text.h"

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
  bool has(std::string_view suffix, const std::vector<DType>& dtypes) const {
    const TensorIndex index = at(suffix);
    return index != kNoTensor && std::find(dtypes.begin(), dtypes.end(), table_[index].dtype) != dtypes.end();
  }
  bool any_begins(std::string_view head) const {
    return std::any_of(found_.begin(), found_.end(), [&](const auto& entry) { return entry.first.substr(0, head.size()) == head; });
  }
  const std::vector<std::pair<std::string_view, TensorIndex>>& all() const { return found_; }
  bool empty() const { return found_.empty(); }
  const std::string& first_name() const { return table_[found_.front().second].name; }

 private:
  const TensorTable& table_;
  std::vector<std::pair<std::string_view, TensorIndex>> found_;
};

/// What other runtimes store beside any format: known and not needed.
constexpr std::string_view kCarried[] = {"activation_scale", "weight_shape", "input_scale"};

/// How well a spelling fits what is there.
struct Match {
  const Format* format = nullptr;
  const Spelling* spelling = nullptr;
  int score = 0;          ///< 2 per tensor of the right dtype, 1 per tensor of another
  bool complete = false;  ///< every tensor is there in a right dtype, and the config gives the blocks that it must give
  bool alone = false;     ///< no other tensor is there
};

Match match_of(const Format& format, const Spelling& spelling, const Suffixes& tensors, const QuantizationHints& hints) {
  Match match{&format, &spelling, 0, !spelling.configured_blocks || hints.block.has_value(), false};
  const auto expect = [&](std::string_view suffix, const std::vector<DType>& dtypes) {
    if (suffix.empty()) return;
    const bool right = tensors.has(suffix, dtypes);
    match.score += right ? 2 : tensors.has(suffix) ? 1 : 0;
    match.complete = match.complete && right;
  };
  expect(spelling.codes, spelling.code_dtypes);
  expect(spelling.scales, spelling.scale_dtypes);
  expect(spelling.tensor_scale, {DType::f32});
  match.alone = std::all_of(tensors.all().begin(), tensors.all().end(), [&](const auto& entry) {
    const std::string_view suffix = entry.first;
    return suffix == spelling.codes || suffix == spelling.scales || suffix == spelling.tensor_scale || suffix == spelling.input_scale || suffix == "bias" ||
           std::find(std::begin(kCarried), std::end(kCarried), suffix) != std::end(kCarried);
  });
  return match;
}

/// The spelling that explains all, else the one that fits best: its missing or wrong tensors are then named.
Match closest(const Suffixes& tensors, const QuantizationHints& hints) {
  Match best;
  for (const Format* const format : all_formats()) {
    for (const Spelling& spelling : format->spellings) {
      const Match match = match_of(*format, spelling, tensors, hints);
      if (match.complete && match.alone) return match;
      if (match.score > best.score) best = match;
    }
  }
  return best;
}

/// Forms that are known and not built, by the marks they leave where no spelling explains all tensors; "" = none of them. The
/// one list of them: a form that is built leaves it.
std::string_view unbuilt_form(const Suffixes& tensors, const QuantizationHints& hints) {
  if (tensors.any_begins("weight.quant_state") || tensors.has("weight.absmax")) return "bitsandbytes";
  if (tensors.has("qweight")) return hints.method == "gptq" ? "gptq" : hints.method == "awq" ? "awq" : "int4 awq or gptq";
  if (tensors.has("pre_quant_scale")) return tensors.has("weight_scale_2") ? "nvfp4_awq" : "int4 modelopt awq";
  if (tensors.has("weight_packed") && tensors.has("weight_scale") && !tensors.has("weight_global_scale") &&
      !tensors.has("weight_scale", {DType::u8, DType::f8_e8m0})) return "int4 pack-quantized";
  if (tensors.has("weight", {DType::f8_e4m3})) {
    const bool e8m0 = !hints.block && (tensors.has("weight_scale_inv", {DType::f8_e8m0}) || tensors.has("weight_scale", {DType::f8_e8m0}));
    if (e8m0 || tensors.has("weight_scale_inv", {DType::u8}) || tensors.has("weight_scale", {DType::u8})) return "mxfp8";
    if (tensors.has("weight_scale") && !hints.block) return "fp8 per tensor or channel";
    if (!tensors.has("weight_scale") && !tensors.has("weight_scale_inv")) return "fp8 without a scale";
  }
  if (tensors.has("weight", {DType::i8}) && tensors.has("weight_scale", {DType::f32, DType::bf16, DType::f16})) return "int8";
  if (tensors.has("weight", {DType::f8_e5m2, DType::f8_e4m3fnuz, DType::f8_e5m2fnuz})) return "fp8 other than E4M3FN";
  return "";
}

/// Six-bit floats lie in the same tensors as four-bit ones, three bytes per four values.
bool is_six_bit(const TensorInfo& codes, const MatrixWish& wish) { return !codes.shape.empty() && codes.shape.back() == wish.cols / 4 * 3; }

MatrixTensors unbuilt(std::string form, const Suffixes& tensors) {
  MatrixTensors matrix;
  matrix.format = std::move(form);
  matrix.bias = tensors.at("bias");
  for (const auto& [suffix, index] : tensors.all()) {
    if (index != matrix.bias) matrix.unread.push_back(index);
  }
  matrix.codes = matrix.unread.front();
  return matrix;
}

std::vector<std::int64_t> with_experts(const MatrixWish& wish, std::vector<std::int64_t> shape) {
  if (wish.stacked) shape.insert(shape.begin(), wish.experts);
  return shape;
}

void check_dtype(const TensorInfo& tensor, const std::vector<DType>& dtypes, std::string_view role) {
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

/// Extents of a scale block: the config's where the spelling says so, else the format's.
void settle_blocks(MatrixTensors& matrix, const TensorInfo& codes, const MatrixWish& wish, const QuantizationHints& hints) {
  const FormatFacts& facts = matrix.built->facts;
  matrix.block_rows = facts.block_rows;
  matrix.block_cols = facts.block_cols;
  if (matrix.spelling->configured_blocks) {
    if (!hints.block) {
      fail(ErrorCode::bad_input, "tensor ", quote(codes.name), " is FP8 with block scales but ", hints.where.empty() ? "config.json" : hints.where,
           " has no 'weight_block_size': the block size is never guessed from shapes; take the config.json that belongs to the weights");
    }
    std::tie(matrix.block_rows, matrix.block_cols) = *hints.block;
  }
  if (matrix.block_cols % facts.block_cols_unit != 0 && matrix.block_cols < wish.cols) {
    fail(ErrorCode::not_supported, "tensor ", quote(codes.name), " is ", matrix.format, " in blocks of ", matrix.block_cols, " columns by ", hints.where,
         ": blocks of a multiple of ", facts.block_cols_unit, " columns, or of all, are built; take another release of the model");
  }
  if (wish.cols % facts.values_per_block != 0) {
    fail(ErrorCode::bad_input, "tensor ", quote(codes.name), ": the reduction axis of ", wish.cols, " is no multiple of the ", matrix.format, " group of ", facts.values_per_block, ": config.json and weights do not belong together");
  }
  const auto& groups = hints.float4_groups;
  if (facts.bits_per_value == 4 && !groups.empty() && std::find(groups.begin(), groups.end(), matrix.block_cols) == groups.end()) {
    fail(ErrorCode::bad_input, hints.where, " says groups of ", groups.front(), " but tensor ", quote(codes.name), " is ", matrix.format, ", whose groups are ", matrix.block_cols, ": take the config.json that belongs to the weights");
  }
}

std::vector<std::int64_t> code_shape(const MatrixTensors& matrix, const TensorInfo& codes, const MatrixWish& wish) {
  const FormatFacts& facts = matrix.built->facts;
  if (!is_packed(facts)) return with_experts(wish, is_plain(facts) && wish.transposed ? std::vector{wish.cols, wish.rows} : std::vector{wish.rows, wish.cols});
  const std::int64_t blocks = wish.cols / facts.values_per_block, per_block = codes.dtype == DType::f4 ? facts.values_per_block : facts.bytes_per_block;
  return with_experts(wish, matrix.spelling->split_codes ? std::vector{wish.rows, blocks, per_block} : std::vector{wish.rows, blocks * per_block});
}

}  // namespace

void check_shape(const TensorInfo& tensor, const std::vector<std::int64_t>& shape, const std::function<std::string()>& why) {
  if (tensor.shape == shape) return;
  fail(ErrorCode::bad_input, "tensor ", quote(tensor.name), " has shape ", shape_text(tensor.shape), " and must have ", shape_text(shape), " (", why(),
       "): config.json and weights do not belong together, or the file is broken");
}

void check_float(const TensorInfo& tensor) { check_dtype(tensor, {DType::f32, DType::bf16, DType::f16}, "this tensor"); }

std::string not_built_text(std::string_view format, const TensorInfo& tensor) {
  return text_of("format ", format, " of tensor ", quote(tensor.name), " is not built: take a release of the model in a format of 'motet list formats'");
}

MatrixTensors find_matrix(const TensorTable& table, const MatrixWish& wish, const QuantizationHints& hints) {
  const Suffixes tensors(table, wish);
  const Match match = closest(tensors, hints);
  if (!match.complete || !match.alone) {
    if (const std::string_view form = unbuilt_form(tensors, hints); !form.empty()) return unbuilt(std::string(form), tensors);
  }
  if (!match.format) return {};
  const Spelling& spelling = *match.spelling;
  MatrixTensors matrix;
  matrix.format = match.format->facts.name;
  matrix.built = match.format;
  matrix.spelling = match.spelling;
  const auto at = [&](std::string_view suffix) { return suffix.empty() ? kNoTensor : tensors.at(suffix); };
  matrix.codes = at(spelling.codes);
  matrix.scales = at(spelling.scales);
  matrix.tensor_scale = at(spelling.tensor_scale);
  matrix.input_scale = at(spelling.input_scale);
  matrix.bias = tensors.at("bias");
  for (const std::string_view suffix : kCarried) {
    if (const TensorIndex index = tensors.at(suffix); index != kNoTensor && index != matrix.input_scale) matrix.carried.push_back(index);
  }
  if (matrix.codes == kNoTensor) fail(ErrorCode::bad_input, "the codes of ", quote(wish.module), " are missing beside ", quote(tensors.first_name()), ": fetch the checkpoint again");
  const TensorInfo& codes = table[matrix.codes];
  if (match.score == 1) {
    fail(ErrorCode::bad_input, "tensor ", quote(codes.name), " is ", name_of(codes.dtype), " without the scales of a quantised format, and a weight is F32, BF16, F16 or quantised");
  }
  if (wish.stacked && !spelling.stacks) return unbuilt("stacked " + matrix.format, tensors);
  if (matrix.scales == kNoTensor && !spelling.scales.empty()) fail(ErrorCode::bad_input, "the block scales of tensor ", quote(codes.name), " (", matrix.format, ") are missing: fetch the checkpoint again");
  if (matrix.tensor_scale == kNoTensor && !spelling.tensor_scale.empty()) fail(ErrorCode::bad_input, "the tensor scale of ", quote(codes.name), " (", matrix.format, ") is missing: fetch the checkpoint again");
  settle_blocks(matrix, codes, wish, hints);
  check_dtype(codes, spelling.code_dtypes, text_of("a ", matrix.format, " weight"));
  if (is_packed(match.format->facts) && is_six_bit(codes, wish)) return unbuilt("mxfp6", tensors);
  const auto why = why_of(matrix, wish, hints);
  check_shape(codes, code_shape(matrix, codes, wish), why);
  if (matrix.scales != kNoTensor) {
    const TensorInfo& scales = table[matrix.scales];
    check_dtype(scales, spelling.scale_dtypes, text_of("a ", matrix.format, " block scale"));
    const auto blocks = [](std::int64_t extent, std::int64_t block) { return block > 0 ? ceil_div(extent, block) : 1; };
    check_shape(scales, with_experts(wish, {blocks(wish.rows, matrix.block_rows), blocks(wish.cols, matrix.block_cols)}), why);
    matrix.scale_dtype = scales.dtype == DType::u8 ? spelling.scale_dtypes.front() : scales.dtype;
  }
  for (const TensorIndex index : {matrix.tensor_scale, matrix.input_scale}) {
    if (index != kNoTensor) check_scalar(table[index]);
  }
  return matrix;
}

}  // namespace motet
