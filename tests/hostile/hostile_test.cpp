// SPDX-License-Identifier: Apache-2.0
// Seeded damage to golden checkpoints, replayed from the file to one token of output: a result or an Error, never a crash, a
// hang or a bug's code. Under AddressSanitizer every byte that is read is one that belongs to the file.
#include <random>

#include "base/json.h"
#include "hostile.h"

namespace motet::hostile {
namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t count) { return random() % count; }

/// Numbers, and what is none, where a number stands.
const std::vector<std::string>& odd_values() {
  static const std::vector<std::string> values = {"0", "1", "2", "3", "-1", "16", "31", "33", "255", "2147483647", "2147483648", "4611686018427387904", "9223372036854775807",
                                                  "9223372036854775808", "18446744073709551616", "1e308", "1.5", "-0", "NaN", "Infinity", "null", "true", "\"x\"", "[]", "{}"};
  return values;
}

/// Replaces the `which`-th run of digits of a JSON text.
std::string with_number(const std::string& text, Random& random, const std::string& value) {
  std::vector<std::pair<std::size_t, std::size_t>> numbers;
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end == at) continue;
    numbers.emplace_back(at, end - at);
    at = end;
  }
  const auto [at, length] = numbers[below(random, numbers.size())];
  return text.substr(0, at) + value + text.substr(at + length);
}

void flip_bits(std::string& text, std::size_t begin, std::size_t end, Random& random) {
  for (std::size_t i = 0, flips = 1 + below(random, 3); i < flips; ++i) text[begin + below(random, end - begin)] ^= static_cast<char>(1 << below(random, 8));
}

std::string with_header(const std::string& header, const std::string& body) { return testing::u64_text(header.size()) + header + body; }

/// Two tensors trade one field, or one takes another's name, or one is lost.
std::string with_traded_tensors(const Victim& victim, Random& random) {
  Json header = Json::parse(victim.header());
  header.erase("__metadata__");
  const auto pick = [&] { return std::next(header.begin(), static_cast<std::ptrdiff_t>(below(random, header.size()))); };
  const auto first = pick(), second = pick();
  const std::string one = first.key(), two = second.key();
  switch (below(random, 5)) {
    case 0: std::swap(header[one]["dtype"], header[two]["dtype"]); break;
    case 1: std::swap(header[one]["shape"], header[two]["shape"]); break;
    case 2: std::swap(header[one]["data_offsets"], header[two]["data_offsets"]); break;
    case 3: std::swap(header[one], header[two]); break;
    default: header[one + ".x"] = header[one]; header.erase(one);
  }
  return with_header(header.dump(), victim.body());
}

/// One damage; files are whole again after the next call of Victim::restore.
void damage(const Victim& victim, Random& random) {
  std::string weights = victim.weights;
  const std::size_t header_end = 8 + victim.header_bytes();
  switch (below(random, 8)) {
    case 0:
      flip_bits(weights, 0, header_end, random);
      break;
    case 1:
      weights = with_header(with_number(victim.header(), random, odd_values()[below(random, odd_values().size())]), victim.body());
      break;
    case 2:
      weights = with_traded_tensors(victim, random);
      break;
    case 3:
      flip_bits(weights, header_end, weights.size(), random);
      break;
    case 4: {  // bytes that are NaN, infinite, negative or zero in some format
      const char odd[] = {'\xff', '\x7f', '\x80', '\0', '\xfe'};
      const std::size_t at = header_end + below(random, weights.size() - header_end), count = 1 + below(random, 64);
      for (std::size_t i = at; i < std::min(weights.size(), at + count); ++i) weights[i] = odd[below(random, sizeof odd)];
      break;
    }
    case 5:
      if (below(random, 2) == 0) weights.resize(below(random, weights.size()));
      else weights.append(1 + below(random, 4096), '\0');
      break;
    case 6: {
      std::string config = victim.config;
      flip_bits(config, 0, config.size(), random);
      testing::write_file(victim.config_path(), config);
      return;
    }
    default:
      testing::write_file(victim.config_path(), with_number(victim.config, random, odd_values()[below(random, odd_values().size())]));
      return;
  }
  testing::write_file(victim.weights_path(), weights);
}

/// How many damaged checkpoints were refused and how many ran; stops at the first failure.
struct Tally {
  int refused = 0, accepted = 0;
};
void replay(const Victim& victim, unsigned seeds, Tally& tally) {
  const Outcome whole = outcome_of(victim.dir.str());
  ASSERT_EQ(whole.code, ErrorCode::ok) << whole.text;
  for (unsigned seed = 0; seed < seeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    damage(victim, random);
    const Outcome outcome = outcome_of(victim.dir.str());
    expect_presentable(outcome);
    ++(outcome.code == ErrorCode::ok ? tally.accepted : tally.refused);
    victim.restore();
  }
}

/// Each format and each layout is among them; the large ones are made small, so that many seeds fit into seconds.
TEST(L18, SeededDamageIsAResultOrANamedError) {
  Tally tally;
  for (const char* const name : {"nemotron_h_nvfp4_modelopt", "nemotron_h_latent", "qwen3_moe_nvfp4_ct", "qwen2_moe", "granitemoe", "llama4_text"}) {
    SCOPED_TRACE(name);
    replay(Victim(name), 150, tally);
  }
  {
    SCOPED_TRACE("mxfp4");
    replay(Victim(testing::gpt_oss_checkpoint()), 600, tally);
  }
  {
    SCOPED_TRACE("fp8_block");
    replay(Victim(testing::qwen3_checkpoint(
               [](testing::TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
                 testing::write_fp8(out, module, rows, cols);
                 out.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
               })),
           600, tally);
  }
  EXPECT_GT(tally.refused, 700) << "damage is found";
  EXPECT_GT(tally.accepted, 300) << "runs that reach the forward are among them";
}

TEST(L18, OddValuesOfEveryConfigKeyAreAResultOrANamedError) {
  const char* const words[] = {"hidden", "intermediate", "expert", "layer", "limit", "alpha", "group", "scal", "topk", "act", "moe", "step", "freq", "dense", "latent", "model_type"};
  int refused = 0;
  for (const char* const name : {"gpt_oss_mxfp4", "mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "deepseek_v3_fp8_block", "nemotron_h_latent", "llama4_text", "granitemoe"}) {
    const Victim victim(name);
    const Json config = parse_json(victim.config, "config");
    for (const auto& [key, before] : config.items()) {
      if (std::none_of(std::begin(words), std::end(words), [&](const char* word) { return key.find(word) != std::string::npos; })) continue;
      for (const std::string& value : odd_values()) {
        SCOPED_TRACE(std::string(name) + ": " + key + " = " + value);
        Json changed = config;
        changed[key] = "@";
        std::string text = changed.dump();
        testing::write_file(victim.config_path(), text.replace(text.find("\"@\""), 3, value));
        try {
          Checkpoint::open(victim.dir.str());
        } catch (const Error& error) {
          expect_presentable({error.code(), error.what()});
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000) << "odd values are found";
}

}  // namespace
}  // namespace motet::hostile
