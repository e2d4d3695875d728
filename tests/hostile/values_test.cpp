// SPDX-License-Identifier: Apache-2.0
// Values that no checkpoint should hold, and hidden states that are not numbers.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/json.h"
#include "hostile.h"

namespace motet::hostile {
namespace {

std::string f32_bytes(float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// Writes bytes over the start of the first tensor whose name holds `part` and ends with `end`, and returns its name.
std::string overwrite(const Victim& victim, const std::string& part, const std::string& end, const std::string& bytes) {
  const Json header = Json::parse(victim.header());
  for (const auto& [name, tensor] : header.items()) {
    if (name.find(part) == std::string::npos || !name.ends_with(end)) continue;
    std::string weights = victim.weights;
    weights.replace(8 + victim.header_bytes() + tensor["data_offsets"][0].get<std::size_t>(), bytes.size(), bytes);
    testing::write_file(victim.weights_path(), weights);
    return name;
  }
  ADD_FAILURE() << "no tensor " << part << "*" << end;
  return "";
}

struct BrokenValue {
  const char *checkpoint, *part, *end;
  std::string bytes;
  const char* word;
};

TEST(L18, ScalesThatAreNoNumbersAreRefusedByTensor) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  std::vector<BrokenValue> values = {
      {"gpt_oss_mxfp4", "layers.0.mlp.experts", "gate_up_proj_scales", "\xff", "0xff"},
      {"gpt_oss_mxfp4", "layers.0.mlp.experts", "down_proj_scales", "\xff", "0xff"},
      {"gpt_oss_mxfp4", "layers.0.mlp.experts", "down_proj_bias", "\xc0\x7f", "nan"},
      {"gpt_oss_mxfp4", "layers.0.mlp.router", "bias", "\x80\xff", "inf"},
      {"gpt_oss_mxfp4", "layers.0.mlp.router", "weight", "\xc0\x7f", "nan"},
      {"qwen3_moe_nvfp4_ct", "experts.0.down_proj", "weight_scale", "\x7f", "NaN"},
      {"qwen3_moe_nvfp4_ct", "experts.0.down_proj", "weight_scale", "\x81", "sign bit"},
  };
  for (const float value : {0.0f, -0.0f, -1.0f, kNaN, kInf, -kInf}) {
    values.push_back({"qwen3_moe_nvfp4_ct", "experts.0.down_proj", "weight_global_scale", f32_bytes(value), "finite and above 0"});
    values.push_back({"nemotron_h_nvfp4_modelopt", "experts.0.down_proj", "weight_scale_2", f32_bytes(value), "finite and above 0"});
    values.push_back({"deepseek_v3_fp8_block", "experts.0.down_proj", "weight_scale_inv", f32_bytes(value), "finite and above zero"});
  }
  for (const BrokenValue& value : values) {
    SCOPED_TRACE(std::string(value.checkpoint) + " " + value.part + " " + value.end + " " + value.word);
    const Victim victim(value.checkpoint);
    overwrite(victim, value.part, value.end, value.bytes);
    const Outcome outcome = outcome_of(victim.dir.str());
    EXPECT_EQ(name_of(outcome.code), name_of(ErrorCode::bad_input)) << outcome.text;
    for (const char* const word : {value.part, value.word, "fetch it again"}) EXPECT_NE(outcome.text.find(word), std::string::npos) << outcome.text;
  }
}

std::vector<float> row(const std::vector<float>& values, std::int64_t tokens, std::int64_t token) {
  const std::int64_t width = static_cast<std::int64_t>(values.size()) / tokens;
  return {values.begin() + token * width, values.begin() + (token + 1) * width};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

/// With one arithmetic and order whatever the tokens, the others' bits tell whether anything of the broken token reached them.
TEST(L8, HiddenStatesThatAreNoNumbersStayInTheirOwnToken) {
  constexpr std::int64_t kTokens = 24, kBroken = 7;
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
  for (const std::string& name : golden_names()) {
    Wishes cpu;
    cpu.backend = "cpu";
    cpu.invariant = true;
    for (const Wishes& wishes : {reference(), cpu}) {
      const auto checkpoint = Checkpoint::open(golden(name));
      Runnable run = runnable(*checkpoint, wishes, kTokens);
      const std::int64_t hidden = run.plan.spec.hidden;
      const std::vector<float> sound = synthetic_hidden_states(kTokens, hidden, 1);
      const Result expected = forward(run, sound);
      ASSERT_TRUE(expected.status.ok()) << expected.status.text();
      for (const float value : odd) {
        SCOPED_TRACE(name + " " + wishes.backend + " " + std::to_string(value));
        std::vector<float> broken = sound;
        broken[static_cast<std::size_t>(kBroken * hidden + hidden / 2)] = value;
        const Result given = forward(run, broken);
        ASSERT_TRUE(given.status.ok()) << given.status.text();
        for (std::int64_t token = 0; token < kTokens; ++token) {
          if (token == kBroken) continue;
          ASSERT_TRUE(same_bits(row(given.output, kTokens, token), row(expected.output, kTokens, token))) << "token " << token;
          ASSERT_TRUE(same_bits(row(given.weights, kTokens, token), row(expected.weights, kTokens, token))) << "token " << token;
        }
        const std::vector<float> own = row(given.output, kTokens, kBroken);
        if (std::isnan(value)) {
          EXPECT_TRUE(std::all_of(own.begin(), own.end(), [](float x) { return std::isnan(x); })) << "a NaN does not vanish";
        }
        for (std::int64_t k = 0; k < run.plan.spec.top_k; ++k) {
          const std::int32_t id = given.index[static_cast<std::size_t>(kBroken * run.plan.spec.top_k + k)];
          EXPECT_TRUE(id >= 0 && id < run.plan.spec.experts) << id;
        }
      }
    }
  }
}

}  // namespace
}  // namespace motet::hostile
