// SPDX-License-Identifier: Apache-2.0
// Every golden checkpoint opens with the numbers of its config, and its views give the values that the published layout says,
// decoded here once more from tensor names alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "checkpoint/testing.h"
#include "formats/format.h"
#include "formats/layer_weights.h"
#include "motet/checkpoint.h"

namespace motet {
namespace {

/// A safetensors file by name: element values from the bits.
class PlainFile {
 public:
  explicit PlainFile(const std::string& path) : text_(testing::read_file(path)) {
    std::uint64_t length = 0;
    std::memcpy(&length, text_.data(), 8);
    header_ = Json::parse(text_.substr(8, length));
    data_ = 8 + length;
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  std::vector<std::int64_t> shape(const std::string& name) const { return header_.at(name).at("shape"); }
  unsigned byte(const std::string& name, std::int64_t at) const { return static_cast<unsigned char>(text_[data_ + header_.at(name).at("data_offsets")[0].get<std::uint64_t>() + static_cast<std::uint64_t>(at)]); }
  double element(const std::string& name, std::int64_t at) const {
    const std::string dtype = header_.at(name).at("dtype");
    if (dtype == "BF16") return float_of((byte(name, 2 * at) | byte(name, 2 * at + 1) << 8) << 16);
    if (dtype == "F32") return float_of(byte(name, 4 * at) | byte(name, 4 * at + 1) << 8 | byte(name, 4 * at + 2) << 16 | byte(name, 4 * at + 3) << 24);
    EXPECT_EQ(dtype, "F8_E4M3");
    const unsigned code = byte(name, at), exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * std::ldexp(1.0, static_cast<int>(exponent) - 10);
    return code & 0x80 ? -magnitude : magnitude;
  }
  double nibble(const std::string& name, std::int64_t at) const {
    static const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
    return values[byte(name, at / 2) >> (at % 2 * 4) & 15];
  }

 private:
  static double float_of(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, 4);
    return static_cast<double>(value);
  }
  std::string text_;
  Json header_;
  std::uint64_t data_ = 0;
};

/// W[n, k] of a module whose tensors are its own, `cols` columns.
double module_value(const PlainFile& file, const std::string& module, std::int64_t cols, std::int64_t n, std::int64_t k) {
  const std::int64_t at = n * cols + k;
  if (file.has(module + ".weight_packed")) return file.nibble(module + ".weight_packed", at) * file.element(module + ".weight_scale", n * (cols / 16) + k / 16) * (1.0 / file.element(module + ".weight_global_scale", 0));
  if (file.has(module + ".weight_scale_2")) return file.nibble(module + ".weight", at) * file.element(module + ".weight_scale", n * (cols / 16) + k / 16) * file.element(module + ".weight_scale_2", 0);
  if (file.has(module + ".weight_scale_inv")) return file.element(module + ".weight", at) * file.element(module + ".weight_scale_inv", n / 128 * ((cols + 127) / 128) + k / 128);
  return file.element(module + ".weight", at);
}

/// W[n, k] of a stack: `stacked_row` is the row among `rows` of one expert.
double gpt_oss_value(const PlainFile& file, const std::string& stack, std::int64_t rows, std::int64_t cols, std::int64_t e, std::int64_t stacked_row, std::int64_t k) {
  if (file.has(stack)) return file.element(stack, (e * cols + k) * rows + stacked_row);       // [E, K, N]
  const std::int64_t at = (e * rows + stacked_row) * cols + k;
  return file.nibble(stack + "_blocks", at) * std::ldexp(1.0, static_cast<int>(file.byte(stack + "_scales", at / 32)) - 127);
}

enum class Part { gate, up, down };

struct Names { std::string block, gate, up, down; };

double published(const PlainFile& file, const std::string& family, const LayerSpec& spec, std::int64_t e, Part part, std::int64_t n, std::int64_t k) {
  const std::string p = (family == "nemotron_h" ? "backbone.layers." : "model.layers.") + std::to_string(spec.layer) + ".";
  const std::int64_t width = spec.dispatch_width(), inner = spec.intermediate, cols = part == Part::down ? inner : width;
  const std::int64_t half = part == Part::up ? inner : 0;
  if (family == "gpt_oss") {
    if (part == Part::down) return gpt_oss_value(file, p + "mlp.experts.down_proj", width, inner, e, n, k);
    return gpt_oss_value(file, p + "mlp.experts.gate_up_proj", 2 * inner, width, e, 2 * n + (part == Part::up), k);
  }
  if (family == "llama4") {
    if (part == Part::down) return file.element(p + "feed_forward.experts.down_proj", (e * inner + k) * width + n);
    return file.element(p + "feed_forward.experts.gate_up_proj", (e * width + k) * 2 * inner + half + n);
  }
  if (family == "granitemoe") {
    if (part == Part::down) return file.element(p + "block_sparse_moe.output_linear.weight", (e * width + n) * inner + k);
    return file.element(p + "block_sparse_moe.input_linear.weight", (e * 2 * inner + half + n) * width + k);
  }
  const Names names = family == "mixtral" ? Names{"block_sparse_moe", "w1", "w3", "w2"} : family == "nemotron_h" ? Names{"mixer", "", "up_proj", "down_proj"} : Names{"mlp", "gate_proj", "up_proj", "down_proj"};
  const std::string name = part == Part::gate ? names.gate : part == Part::up ? names.up : names.down;
  return module_value(file, p + names.block + ".experts." + std::to_string(e) + "." + name, cols, n, k);
}

std::string shared_module(const std::string& family, const LayerSpec& spec, Part part) {
  const std::string p = (family == "nemotron_h" ? "backbone.layers." : "model.layers.") + std::to_string(spec.layer) + ".";
  const std::string block = family == "nemotron_h" ? "mixer.shared_experts." : family == "llama4" ? "feed_forward.shared_expert." : family == "qwen2_moe" ? "mlp.shared_expert." : "mlp.shared_experts.";
  return p + block + (part == Part::gate ? "gate_proj" : part == Part::up ? "up_proj" : "down_proj");
}

void expect_rows(const WeightView& view, const std::string& format, const std::function<double(std::int64_t, std::int64_t)>& value, const std::string& what) {
  std::vector<double> row(static_cast<std::size_t>(view.cols));
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, view.rows / 2, view.rows - 1}) {
    find_format(format)->decode(view, n, 0, view.cols, row.data());
    for (std::int64_t k = 0; k < view.cols; ++k) ASSERT_EQ(row[static_cast<std::size_t>(k)], value(n, k)) << what << " row " << n << " column " << k;
  }
}

void check_layer(const std::string& directory, const Checkpoint& checkpoint, const LayerSpec& spec) {
  const PlainFile file(directory + "/model.safetensors");
  const auto weights = checkpoint.load(spec.layer);
  ASSERT_EQ(static_cast<std::int64_t>(weights->experts.size()), spec.experts);
  for (const std::int64_t e : {std::int64_t{0}, spec.experts / 2, spec.experts - 1}) {
    const ExpertView& expert = weights->experts[static_cast<std::size_t>(e)];
    ASSERT_EQ(expert.gate.codes != nullptr, spec.activation.gated);
    for (const auto& [view, part] : {std::pair{&expert.gate, Part::gate}, std::pair{&expert.up, Part::up}, std::pair{&expert.down, Part::down}}) {
      if (!view->codes) continue;
      expect_rows(*view, part == Part::down ? spec.down.format : spec.gate_up.format, [&, p = part](std::int64_t n, std::int64_t k) { return published(file, spec.family, spec, e, p, n, k); },
                  "expert " + std::to_string(e) + " part " + std::to_string(static_cast<int>(part)));
    }
    if (spec.family == "gpt_oss") {
      const std::string p = "model.layers." + std::to_string(spec.layer) + ".mlp.experts.";
      for (std::int64_t i = 0; i < spec.intermediate; ++i) ASSERT_EQ(load_as_f64(expert.up_bias.dtype, expert.up_bias.data + i * expert.up_bias.stride), file.element(p + "gate_up_proj_bias", (2 * e * spec.intermediate) + 2 * i + 1));
      for (std::int64_t i = 0; i < spec.hidden; ++i) ASSERT_EQ(load_as_f64(expert.down_bias.dtype, expert.down_bias.data + i * expert.down_bias.stride), file.element(p + "down_proj_bias", e * spec.hidden + i));
    }
  }
  if (spec.shared.intermediate > 0) {
    for (const auto& [view, part] : {std::pair{&weights->shared.gate, Part::gate}, std::pair{&weights->shared.up, Part::up}, std::pair{&weights->shared.down, Part::down}}) {
      if (!view->codes) continue;
      const std::int64_t cols = view->cols;
      expect_rows(*view, part == Part::down ? spec.shared.down.format : spec.shared.gate_up.format, [&, p = part](std::int64_t n, std::int64_t k) { return module_value(file, shared_module(spec.family, spec, p), cols, n, k); }, "shared");
    }
  }
  EXPECT_EQ(weights->router.rows, spec.experts);
  EXPECT_EQ(weights->router.cols, spec.hidden);
  EXPECT_TRUE(weights->verify_unchanged().ok());
}

TEST(Golden, EveryCaseHasTheNumbersOfItsConfigAndTheValuesOfItsFile) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MOTET_SOURCE_DIR "/tests/golden")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const std::string directory = entry.path().string();
    const Json config = parse_json(testing::read_file(directory + "/config.json"), "config.json");
    const Json about = parse_json(testing::read_file(directory + "/case.json"), "case.json");
    const auto checkpoint = Checkpoint::open(directory);
    const LayerSpec& spec = checkpoint->layer(about.at("layer")).spec;
    const auto number = [&](std::initializer_list<const char*> keys) -> std::int64_t {
      for (const char* const key : keys) if (config.contains(key) && !config[key].is_null()) return config[key];
      return 0;
    };
    EXPECT_EQ(spec.hidden, number({"hidden_size"}));
    EXPECT_EQ(spec.intermediate, number({"moe_intermediate_size", "intermediate_size"}));
    EXPECT_EQ(spec.experts, number({"num_local_experts", "num_experts", "n_routed_experts"}));
    EXPECT_EQ(spec.top_k, number({"num_experts_per_tok"}));
    EXPECT_EQ(spec.latent, number({"moe_latent_size"}));
    const bool quantised = config.contains("quantization_config");
    EXPECT_EQ(spec.gate_up.format != "bf16", quantised);
    EXPECT_EQ(spec.down.format, spec.gate_up.format);
    check_layer(directory, *checkpoint, spec);
    ++cases;
  }
  EXPECT_GE(cases, 17);
}

TEST(Golden, RoutersOfTheFamilies) {
  const auto router = [](const std::string& name) { return Checkpoint::open(MOTET_SOURCE_DIR "/tests/golden/" + name)->layers()[0].spec; };
  const LayerSpec deepseek = router("deepseek_v3");
  EXPECT_EQ(deepseek.router.score, RouterScore::sigmoid);
  EXPECT_EQ(deepseek.router.groups, 8);
  EXPECT_EQ(deepseek.router.groups_kept, 3);
  EXPECT_EQ(deepseek.router.scale, 2.5);
  EXPECT_TRUE(deepseek.router.selection_bias);
  EXPECT_EQ(deepseek.router.weight_dtype, DType::f32);
  EXPECT_EQ(deepseek.shared.intermediate, 80);
  EXPECT_EQ(deepseek.layer, 1);
  const LayerSpec oss = router("gpt_oss");
  EXPECT_TRUE(oss.router.logit_bias && oss.gate_up.bias && oss.down.bias);
  EXPECT_EQ(oss.router.normalize, RouterNormalize::softmax);
  EXPECT_EQ(oss.activation.limit, 7);
  EXPECT_EQ(router("llama4_text").router.weight_site, WeightSite::input);
  EXPECT_TRUE(router("llama4_text").router.sigmoid_weight);
  EXPECT_TRUE(router("qwen2_moe").shared.gate);
  EXPECT_EQ(router("qwen2_moe").router.normalize, RouterNormalize::none);
  EXPECT_EQ(router("qwen3_moe").router.normalize, RouterNormalize::sum);
  EXPECT_EQ(router("olmoe").router.normalize, RouterNormalize::none);
  EXPECT_FALSE(router("nemotron_h").activation.gated);
  EXPECT_EQ(router("nemotron_h_latent").latent, 72);
}

}  // namespace
}  // namespace motet
