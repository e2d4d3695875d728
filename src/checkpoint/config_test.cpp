// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include "checkpoint/family.h"
#include "motet/error.h"

namespace motet {
namespace {

std::string refusal(const std::function<void()>& call, ErrorCode code = ErrorCode::bad_input) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* const word : words) EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
}

TEST(Config, AcceptsWhatPythonWrites) {
  const Config config(R"({"time_step_limit": [0.0, Infinity], "a": NaN, "b": {"__float__": "Infinity"}, "hidden_size": 7})", "");
  EXPECT_EQ(config.integer({"hidden_size"}), 7);
  expect_words(refusal([&] { config.real({"b"}); }), {"'b'", "finite"});
}

TEST(Config, LooksInTextConfigFirstAndTakesNullForAbsent) {
  const Config config(R"({"hidden_size": 1, "num_experts": 4, "text_config": {"hidden_size": 2, "num_experts": null, "model_type": "inner"}, "model_type": "outer"})", "");
  EXPECT_EQ(config.integer({"hidden_size"}), 2);
  EXPECT_EQ(config.integer({"num_local_experts", "num_experts"}), 4);
  EXPECT_EQ(config.model_types(), (std::vector<std::string>{"inner", "outer"}));
}

TEST(Config, NamesTheKeyOfAWrongType) {
  const Config config(R"({"a": "8", "b": 1.5, "c": -1, "d": 18446744073709551615, "e": [1, "x"], "f": 1})", "");
  for (const char* const key : {"a", "b", "c", "d"}) expect_words(refusal([&] { config.integer({key}); }), {"config.json", key, "whole number"});
  expect_words(refusal([&] { config.integers({"e"}); }), {"'e'", "x"});
  expect_words(refusal([&] { config.boolean_or({"f"}, false); }), {"'f'", "true or false"});
  expect_words(refusal([&] { config.text({"f"}); }), {"'f'", "text"});
  expect_words(refusal([&] { config.integer({"missing", "other"}); }), {"'missing' or 'other'", "missing"});
  expect_words(refusal([] { const Config bad(R"([1])", ""); }), {"config.json", "object"});
  expect_words(refusal([] { const Config bad(R"({"text_config": 3})", ""); }), {"'text_config'", "object"});
  expect_words(refusal([] { const Config bad(R"({"quantization_config": [1]})", ""); }), {"quantization_config", "object"});
  expect_words(refusal([] { const Config bad(R"({"quantization_config": {"weight_block_size": [128]}})", ""); }), {"weight_block_size", "two"});
  expect_words(refusal([] { const Config bad(R"({"quantization_config": {"weight_block_size": [0, 128]}})", ""); }), {"weight_block_size", "above 0"});
}

TEST(Config, RefusesListsLongerThanAnyModelHasLayers) {
  std::string list = "[1";
  for (std::int64_t i = 0; i < kMaxLayers; ++i) list += ",1";
  const Config config("{\"moe_layers\": " + list + "], \"short\": [1]}", "");
  expect_words(refusal([&] { config.integers({"moe_layers"}); }), {"'moe_layers'", std::to_string(kMaxLayers + 1).c_str()});
  EXPECT_EQ(config.integers({"short"})->size(), 1U);
}

TEST(Config, FindsQuantizationInEachPlace) {
  const Config top(R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 64]}})", "");
  EXPECT_EQ(top.quantization().method, "fp8");
  EXPECT_EQ(top.quantization().block, (std::pair<std::int64_t, std::int64_t>{128, 64}));
  const Config nested(R"({"text_config": {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}}})", "");
  EXPECT_EQ(nested.quantization().float4_groups, (std::vector<std::int64_t>{16}));
  const Config beside(R"({"hidden_size": 1})", R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})");
  EXPECT_EQ(beside.quantization().algorithm, "NVFP4");
  EXPECT_NE(beside.quantization().where.find("hf_quant_config.json"), std::string::npos);
  EXPECT_EQ(beside.quantization().float4_groups, (std::vector<std::int64_t>{16}));
}

TEST(Families, UnknownModelTypeListsThemAndSuggestsAClose) {
  expect_words(refusal([] { family_of(Config(R"({"model_type": "qwen3_mo"})", "")); }, ErrorCode::not_supported), {"'qwen3_mo'", "gpt_oss", "nemotron_h", "did you mean 'qwen3_moe'"});
  const std::string far = refusal([] { family_of(Config(R"({"model_type": "bert"})", "")); }, ErrorCode::not_supported);
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
  expect_words(refusal([] { family_of(Config(R"({"hidden_size": 1})", "")); }), {"'model_type' is missing"});
}

TEST(Families, EachModelTypeBelongsToOneFamily) {
  std::vector<std::string_view> seen;
  for (const Family* const family : all_families()) {
    EXPECT_FALSE(family->about.empty());
    for (const std::string_view type : family->model_types) {
      EXPECT_EQ(std::count(seen.begin(), seen.end(), type), 0) << type;
      seen.push_back(type);
    }
  }
  EXPECT_EQ(all_families().size(), 9u);
}

TEST(Families, MoeLayerRules) {
  const auto layers = [](const char* text) {
    const Config config(text, "");
    const Family& family = family_of(config);
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < family.layer_count(config); ++i) if (family.is_moe(config, i)) out.push_back(i);
    return out;
  };
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(layers(R"({"model_type":"deepseek_v3","num_hidden_layers":6,"first_k_dense_replace":3,"moe_layer_freq":1})"), (Layers{3, 4, 5}));
  EXPECT_EQ(layers(R"({"model_type":"deepseek_v3","num_hidden_layers":6,"first_k_dense_replace":1,"moe_layer_freq":2})"), (Layers{2, 4}));
  EXPECT_EQ(layers(R"({"model_type":"glm4_moe","num_hidden_layers":3,"first_k_dense_replace":3,"mlp_layer_types":["dense","sparse","sparse"]})"), (Layers{1, 2}));
  EXPECT_EQ(layers(R"({"model_type":"qwen2_moe","num_hidden_layers":6,"decoder_sparse_step":2,"mlp_only_layers":[3]})"), (Layers{1, 5}));
  EXPECT_EQ(layers(R"({"model_type":"llama4","text_config":{"num_hidden_layers":6,"interleave_moe_layer_step":2}})"), (Layers{1, 3, 5}));
  EXPECT_EQ(layers(R"({"model_type":"llama4_text","num_hidden_layers":6,"interleave_moe_layer_step":2,"moe_layers":[0,4]})"), (Layers{0, 4}));
  EXPECT_EQ(layers(R"({"model_type":"nemotron_h","num_hidden_layers":5,"hybrid_override_pattern":"ME*-E"})"), (Layers{1, 4}));
  EXPECT_EQ(layers(R"({"model_type":"nemotron_h","layers_block_type":["mamba","moe","attention"]})"), (Layers{1}));
  EXPECT_EQ(layers(R"({"model_type":"granitemoehybrid","num_hidden_layers":2,"num_local_experts":0})"), (Layers{}));
  EXPECT_EQ(layers(R"({"model_type":"mixtral","num_hidden_layers":2})"), (Layers{0, 1}));
}

}  // namespace
}  // namespace motet
