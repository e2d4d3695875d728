// SPDX-License-Identifier: Apache-2.0
// Oracles made with other people's software: `motet run` on every case of tests/golden, for `reference` and for `cpu` on every
// usable target, compared by the case's own tolerance file. tests/golden/README.md tells the form of a case.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "motet/motet.hpp"

namespace motet {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> cases() {
  std::vector<fs::path> result;
  for (const auto& entry : fs::directory_iterator(fs::path(MOTET_SOURCE_DIR) / "tests/golden")) {
    if (fs::exists(entry.path() / "case.json")) result.push_back(entry.path());
  }
  std::sort(result.begin(), result.end());
  return result;
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

std::vector<float> floats(const TensorFile& file, const std::string& name) {
  const NamedTensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != DType::f32) return {};
  std::size_t count = 1;
  for (const std::int64_t extent : tensor->shape) count *= static_cast<std::size_t>(extent);
  std::vector<float> values(count);
  std::memcpy(values.data(), tensor->data, count * sizeof(float));
  return values;
}

std::vector<std::int32_t> ints(const TensorFile& file, const std::string& name) {
  const NamedTensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->dtype != DType::i32) return {};
  std::vector<std::int32_t> values(static_cast<std::size_t>(tensor->shape[0] * tensor->shape[1]));
  std::memcpy(values.data(), tensor->data, values.size() * sizeof(std::int32_t));
  return values;
}

double relative_l2(const std::vector<float>& given, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (double(given[i]) - expected[i]) * (double(given[i]) - expected[i]);
    norm += double(expected[i]) * expected[i];
  }
  return std::sqrt(difference / norm);
}

using Choice = std::map<std::int32_t, float>;
// The experts of one token with their weights: their order means nothing.
Choice choice_of(const std::vector<std::int32_t>& index, const std::vector<float>& weights, std::size_t token, std::size_t top_k) {
  Choice choice;
  for (std::size_t k = 0; k < top_k; ++k) choice[index[token * top_k + k]] = weights[token * top_k + k];
  return choice;
}

struct Way {
  std::string backend, target, arithmetic, tolerance;
  std::string text() const { return backend + (target.empty() ? "" : "/" + target) + " " + arithmetic; }
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;  // a process takes ten times as long to start
#else
constexpr bool kSlow = false;
#endif

std::vector<Way> ways() {
  std::vector<Way> result = {{"reference", "", "bf16", "reference"}};
  // Several ranks: experts split, each expert split (some ranks are then left with nothing), both; own tokens, and all tokens.
  int spread = 0;
  for (const char* ranks : {" --ranks 3 --strategy alltoall_single", " --ranks 2", " --ranks 4 --strategy low_latency --allow-substitution", " --tp 4", " --tp 2 --strategy allgather",
                            " --tp 3", " --tp 2 --ep 2 --fabric shm", " --tp 2 --ep 2 --replicated", " --ranks 3 --replicated --fabric shm", " --ranks 2 --chunk-tokens 1"}) {
    if (spread++ % 3 != 0 && kSlow) continue;
    result.push_back({"cpu", "", std::string("exact --wire fp32") + ranks, "exact"});
    if (!kSlow) result.push_back({"reference", "", std::string("bf16 --wire fp32") + ranks, "reference"});
  }
  for (const TargetFacts& target : Environment::probe().targets) {
    if (!target.usable) {
      std::printf("skipped target %s: %s\n", target.name.c_str(), target.reason.c_str());
      continue;
    }
    // The best target and the plainest one, or all.
    if (kSlow && std::any_of(result.begin(), result.end(), [](const Way& way) { return !way.target.empty(); }) && target.name != "generic") continue;
    for (const char* arithmetic : {"bf16", "exact"}) {
      result.push_back({"cpu", target.name, arithmetic, arithmetic});
      for (const char* wish : {" --invariant", " --residence packed"})
        result.push_back({"cpu", target.name, std::string(arithmetic) + wish, arithmetic});
    }
  }
  return result;
}

class Golden : public testing::TestWithParam<fs::path> {};

TEST_P(Golden, RunGivesTheExpectedOutput) {
  const fs::path& folder = GetParam();
  const nlohmann::json tolerance = read_json(folder / "tolerance.json");
  const std::int64_t number = read_json(folder / "case.json").at("layer").get<std::int64_t>();
  const auto expected = TensorFile::open((folder / "expected.safetensors").string());
  const std::vector<float> output = floats(*expected, "output");
  const std::vector<std::int32_t> index = ints(*expected, "top_k_index");
  const std::vector<float> weights = floats(*expected, "top_k_weights");
  ASSERT_FALSE(output.empty());
  const fs::path result_path = fs::temp_directory_path() / ("motet_golden_" + std::to_string(getpid()) + ".safetensors");
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.text());
    fs::remove(result_path);
    std::ostringstream command;
    command << MOTET_BIN_DIR << "/motet run " << folder << " --layer " << number << " --input " << (folder / "input.safetensors") << " --output " << result_path
            << " --no-probe --json --backend " << way.backend << (way.target.empty() ? "" : " --target " + way.target) << " --arithmetic " << way.arithmetic << " >/dev/null";
    ASSERT_EQ(WEXITSTATUS(std::system(command.str().c_str())), 0) << command.str();
    const auto result = TensorFile::open(result_path.string());
    const std::vector<float> given = floats(*result, "output");
    ASSERT_EQ(given.size(), output.size());
    const double bound = tolerance.at("output_rel_l2").at(way.tolerance).get<double>();
    const double error = relative_l2(given, output);
    std::printf("%-28s %-32s error %.3g, bound %.3g\n", folder.filename().c_str(), way.text().c_str(), error, bound);
    EXPECT_LE(error, bound);
    if (index.empty()) continue;
    const std::vector<std::int32_t> given_index = ints(*result, "top_k_index");
    const std::vector<float> given_weights = floats(*result, "top_k_weights");
    ASSERT_EQ(given_index.size(), index.size());
    const auto top_k = static_cast<std::size_t>(expected->find("top_k_index")->shape[1]);
    for (std::size_t token = 0; token < index.size() / top_k; ++token) {
      const Choice expected_choice = choice_of(index, weights, token, top_k), given_choice = choice_of(given_index, given_weights, token, top_k);
      ASSERT_EQ(given_choice.size(), top_k) << "token " << token << " names an expert twice";
      for (const auto& [expert, weight] : given_choice) {
        ASSERT_TRUE(expected_choice.contains(expert)) << "token " << token << " went to expert " << expert;
        ASSERT_LE(std::fabs(expected_choice.at(expert) - weight), tolerance.at("top_k_weights_abs").get<double>()) << "token " << token;
      }
    }
  }
  fs::remove(result_path);
}

// The comparison sees what it must see: one skipped token, one swapped pair of tokens, one eighth of a token's sign flipped.
// (Swapped experts, shifted scales and flipped codes: src/runtime/check_forward_test.cpp, tests/laws/oracle_test.cpp.)
TEST_P(Golden, WrongResultsAreOutsideTheTolerance) {
  const auto expected = TensorFile::open((GetParam() / "expected.safetensors").string());
  const std::vector<float> output = floats(*expected, "output");
  const auto hidden = static_cast<std::size_t>(expected->find("output")->shape[1]);
  const double widest = read_json(GetParam() / "tolerance.json").at("output_rel_l2").at("bf16").get<double>();
  std::vector<float> skipped = output;
  std::fill(skipped.begin(), skipped.begin() + static_cast<std::ptrdiff_t>(hidden), 0.0F);
  EXPECT_GT(relative_l2(skipped, output), widest);
  std::vector<float> swapped = output;
  std::swap_ranges(swapped.begin(), swapped.begin() + static_cast<std::ptrdiff_t>(hidden), swapped.begin() + static_cast<std::ptrdiff_t>(hidden));
  EXPECT_GT(relative_l2(swapped, output), widest);
  std::vector<float> flipped = output;
  for (std::size_t i = 0; i < hidden / 8; ++i) flipped[i] = -flipped[i];
  EXPECT_GT(relative_l2(flipped, output), widest);
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden, testing::ValuesIn(cases()), [](const auto& info) { return info.param.filename().string(); });

// The sample's own expectation, computed in double precision by the script that made it (tools/make_sample.py).
TEST(Sample, GivesItsExpectedOutput) {
  const fs::path sample = fs::path(MOTET_SOURCE_DIR) / "sample/gpt-oss-tiny";
  const auto hidden_file = TensorFile::open((sample / "hidden_states.safetensors").string());
  const auto expected = TensorFile::open((sample / "expected.safetensors").string());
  const auto checkpoint = Checkpoint::open(sample.string());
  for (const LayerSummary& layer : checkpoint->layers()) {
    const std::string prefix = "layers." + std::to_string(layer.spec.layer) + ".";
    const NamedTensor* hidden = hidden_file->find(prefix + "hidden_states");
    ASSERT_NE(hidden, nullptr);
    const std::int64_t tokens = hidden->shape[0];
    std::vector<float> x(static_cast<std::size_t>(tokens * layer.spec.hidden)), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {  // bf16 values, exact in fp32
      std::uint16_t half = 0;
      std::memcpy(&half, static_cast<const char*>(hidden->data) + 2 * i, 2);
      const std::uint32_t bits = std::uint32_t{half} << 16;
      std::memcpy(&x[i], &bits, 4);
    }
    const struct { const char* backend; Arithmetic arithmetic; } sample_ways[] = {{"reference", Arithmetic::bf16}, {"cpu", Arithmetic::exact}, {"cpu", Arithmetic::bf16}};
    for (const auto& way : sample_ways) {
      Deployment deployment;
      deployment.tokens = tokens;
      deployment.input = DType::f32;
      deployment.wishes.backend = way.backend;
      deployment.wishes.arithmetic = way.arithmetic;
      const Plan made = plan(layer.spec, deployment, Environment::probe()).value();
      const auto runnable = Layer::create(made, checkpoint->load(layer.spec.layer));
      ForwardInput in;
      in.hidden_states = {x.data(), DType::f32, tokens, layer.spec.hidden};
      ForwardOutput out;
      out.output = {y.data(), DType::f32, tokens, layer.spec.hidden};
      const RunStatus status = runnable->forward(in, out);
      ASSERT_TRUE(status.ok()) << status.text();
      EXPECT_LE(relative_l2(y, floats(*expected, prefix + "output")), made.recipe.error_bound) << way.backend << " layer " << layer.spec.layer;
    }
  }
}

TEST(GoldenCases, AreThere) { EXPECT_GE(cases().size(), 17U) << "tests/golden must hold its cases"; }

}  // namespace
}  // namespace motet
