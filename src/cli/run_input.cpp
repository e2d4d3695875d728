// SPDX-License-Identifier: Apache-2.0
#include "run_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace motet::cli {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

struct Finder {
  const TensorFile& file;
  const std::string& path;
  const LayerSpec& spec;

  const NamedTensor* find(const std::string& name) const {
    const NamedTensor* own = file.find(fmt::format("layers.{}.{}", spec.layer, name));
    return own != nullptr ? own : file.find(name);
  }
  [[noreturn]] void fail(const NamedTensor& tensor, const std::string& rule, const std::string& remedy) const {
    throw Error(ErrorCode::bad_input, fmt::format("{}: tensor '{}' must be {}, but is {} {}; {}", path, tensor.name, rule, name_of(tensor.dtype), shape_text(tensor.shape), remedy));
  }
  // A [rows, cols] tensor of one of the dtypes, or null when absent. rows < 0: any.
  const NamedTensor* matrix(const std::string& name, std::int64_t rows, std::int64_t cols, const std::vector<DType>& dtypes) const {
    const NamedTensor* tensor = find(name);
    if (tensor == nullptr) return nullptr;
    std::vector<std::string> names;
    bool known = false;
    for (const DType dtype : dtypes) {
      names.emplace_back(name_of(dtype));
      known = known || dtype == tensor->dtype;
    }
    const bool fits = tensor->shape.size() == 2 && tensor->shape[1] == cols && (rows < 0 || tensor->shape[0] == rows);
    if (!known || !fits) {
      fail(*tensor, fmt::format("{} [{}, {}]", fmt::join(names, " or "), rows < 0 ? "tokens" : std::to_string(rows), cols),
           fmt::format("layer {} has hidden {}, experts {}, top_k {}", spec.layer, spec.hidden, spec.experts, spec.top_k));
    }
    return tensor;
  }
};

const NamedTensor& hidden_states(const Finder& finder) {
  const NamedTensor* hidden = finder.matrix("hidden_states", -1, finder.spec.hidden, {DType::bf16, DType::f16, DType::f32});
  if (hidden == nullptr) {
    throw Error(ErrorCode::bad_input, fmt::format("{}: an input file must hold 'hidden_states' [tokens, {}] (or 'layers.{}.hidden_states'), but has neither; add it",
                                                  finder.path, finder.spec.hidden, finder.spec.layer));
  }
  return *hidden;
}

constexpr std::array<std::string_view, 5> kInputNames = {"hidden_states", "router_logits", "token_ids", "top_k_index", "top_k_weights"};

template <class To, class From>
void widen(std::vector<To>& out, const NamedTensor& tensor, std::size_t count) {
  std::vector<From> values(count);
  if (count > 0) std::memcpy(values.data(), tensor.data, count * sizeof(From));
  out.assign(values.begin(), values.end());
}

}  // namespace

ForwardInput RunInput::view(const LayerSpec& spec) const {
  ForwardInput input;
  input.hidden_states = {hidden_states.data(), dtype, tokens, spec.hidden};
  if (!router_logits.empty()) input.router_logits = {router_logits.data(), DType::f32, tokens, spec.experts + spec.router.zero_experts};
  if (!top_k_index.empty()) input.top_k_index = top_k_index.data();
  if (!top_k_weights.empty()) input.top_k_weights = top_k_weights.data();
  if (!token_ids.empty()) input.token_ids = token_ids.data();
  return input;
}

InputShape shape_in_file(const TensorFile& file, const std::string& path, const LayerSpec& spec) {
  const NamedTensor& hidden = hidden_states(Finder{file, path, spec});
  return {hidden.shape[0], hidden.dtype};
}

std::vector<std::string> unused_tensors(const TensorFile& file) {
  std::vector<std::string> result;
  for (const NamedTensor& tensor : file.tensors()) {
    std::string name = tensor.name;
    if (name.starts_with("layers.")) {
      const std::size_t dot = name.find('.', 7);
      if (dot != std::string::npos && dot > 7 && name.find_first_not_of("0123456789", 7) == dot) name = name.substr(dot + 1);
    }
    if (std::find(kInputNames.begin(), kInputNames.end(), name) == kInputNames.end()) result.push_back(tensor.name);
  }
  return result;
}

RunInput input_from_file(const TensorFile& file, const std::string& path, const LayerSpec& spec) {
  const Finder finder{file, path, spec};
  const NamedTensor* hidden = &hidden_states(finder);
  RunInput input;
  input.source = fmt::format("{} ({})", path, hidden->name);
  input.dtype = hidden->dtype;
  input.tokens = hidden->shape[0];
  const auto count = static_cast<std::size_t>(input.tokens);
  const std::size_t bytes = count * static_cast<std::size_t>(spec.hidden) * static_cast<std::size_t>(bits_of(hidden->dtype) / 8);
  input.hidden_states.resize(bytes);
  if (bytes > 0) std::memcpy(input.hidden_states.data(), hidden->data, bytes);
  const std::int64_t all_experts = spec.experts + spec.router.zero_experts;
  if (const NamedTensor* logits = finder.matrix("router_logits", input.tokens, all_experts, {DType::f32})) {
    widen<float, float>(input.router_logits, *logits, count * static_cast<std::size_t>(all_experts));
  }
  const NamedTensor* index = finder.matrix("top_k_index", input.tokens, spec.top_k, {DType::i32, DType::i64});
  const NamedTensor* weights = finder.matrix("top_k_weights", input.tokens, spec.top_k, {DType::f32});
  if ((index == nullptr) != (weights == nullptr)) {
    throw Error(ErrorCode::bad_input, fmt::format("{}: given routing is 'top_k_index' and 'top_k_weights' together, but only '{}' is there; add the other or drop it",
                                                  path, (index != nullptr ? index : weights)->name));
  }
  if (index != nullptr) {
    const std::size_t cells = count * static_cast<std::size_t>(spec.top_k);
    if (index->dtype == DType::i32) {
      widen<std::int32_t, std::int32_t>(input.top_k_index, *index, cells);
    } else {
      std::vector<std::int64_t> wide;
      widen<std::int64_t, std::int64_t>(wide, *index, cells);
      for (const std::int64_t id : wide) {
        if (id < INT32_MIN || id > INT32_MAX) finder.fail(*index, "expert ids of 32 bits", fmt::format("it holds {}", id));
        input.top_k_index.push_back(static_cast<std::int32_t>(id));
      }
    }
    widen<float, float>(input.top_k_weights, *weights, cells);
  }
  if (const NamedTensor* ids = finder.find("token_ids")) {
    if (ids->shape != std::vector<std::int64_t>{input.tokens} || (ids->dtype != DType::i32 && ids->dtype != DType::i64)) {
      finder.fail(*ids, fmt::format("I32 or I64 [{}]", input.tokens), "one id per token");
    }
    if (ids->dtype == DType::i32) {
      widen<std::int64_t, std::int32_t>(input.token_ids, *ids, count);
    } else {
      widen<std::int64_t, std::int64_t>(input.token_ids, *ids, count);
    }
  }
  return input;
}

RunInput synthetic_input(const LayerSpec& spec, std::int64_t tokens, std::uint64_t seed) {
  const std::vector<float> values = synthetic_hidden_states(tokens, spec.hidden, seed);
  RunInput input;
  input.source = fmt::format("{} Gaussian tokens, seed {}", tokens, seed);
  input.dtype = DType::bf16;
  input.tokens = tokens;
  input.hidden_states.resize(values.size() * 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The values are bf16 already: their low 16 bits are zero.
    std::uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof bits);
    const auto high = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(input.hidden_states.data() + 2 * i, &high, sizeof high);
  }
  return input;
}

}  // namespace motet::cli
