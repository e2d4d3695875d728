// SPDX-License-Identifier: Apache-2.0
// The motet program as a person and a machine see it: exit codes, help, suggestions, JSON, files whole or not at all.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "motet/motet.hpp"

namespace motet {
namespace {

namespace fs = std::filesystem;

struct Result {
  int code = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    work_ = fs::temp_directory_path() / ("motet_cli_" + std::to_string(getpid()) + "_" + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(work_);
  }
  void TearDown() override { fs::remove_all(work_); }
  Result run(const std::string& arguments, const std::string& environment = "") const {
    const std::string command = environment + " " MOTET_BIN_DIR "/motet " + arguments + " >" + (work_ / "out").string() + " 2>" + (work_ / "err").string() + " </dev/null";
    Result result;
    const int status = std::system(command.c_str());
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = slurp(work_ / "out");
    result.err = slurp(work_ / "err");
    return result;
  }
  fs::path work_;
  const std::string golden_ = MOTET_SOURCE_DIR "/tests/golden/gpt_oss_mxfp4";
};

TEST_F(Program, HelpHasAnExampleAtEveryLevel) {
  for (const char* level : {"", "doctor", "list", "inspect", "plan", "run", "check", "bench", "completion"}) {
    const Result result = run(std::string(level) + " --help");
    EXPECT_EQ(result.code, 0) << level;
    EXPECT_NE(result.out.find("Example"), std::string::npos) << level;
    EXPECT_TRUE(result.err.empty()) << level << result.err;
  }
}

TEST_F(Program, VersionNamesTheTargets) {
  const Result result = run("--version");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.out.find("avx512_bf16"), std::string::npos);
  EXPECT_NE(result.out.find("generic"), std::string::npos);
}

TEST_F(Program, MistypedWordsAreUsageErrorsWithASuggestion) {
  const struct { const char* arguments; const char* near; } slips[] = {
      {"pla x", "'plan'"}, {"run x --tokns 3", "'--tokens'"}, {"list formts", "'formats'"}, {"plan x --arithmetic exct", "'exact'"},
      {"plan x --backend cpuu", "'cpu'"}, {"bench gpt-os-20b", "'gpt-oss-20b'"}, {"bench gpt-oss-20b --routing zpf --experts 4", "'zipf'"}};
  for (const auto& slip : slips) {
    const Result result = run(slip.arguments);
    EXPECT_EQ(result.code, 2) << slip.arguments << result.err;
    EXPECT_NE(result.err.find(slip.near), std::string::npos) << slip.arguments << ": " << result.err;
    EXPECT_TRUE(result.out.empty()) << slip.arguments;
  }
}

TEST_F(Program, JsonIsOneDocumentWithAVersionedSchema) {
  const std::vector<std::string> calls = {"doctor", "list", "inspect " + golden_ + " --tensors", "plan " + golden_, "run " + golden_ + " --check", "check " + golden_,
                                          "bench gpt-oss-20b --experts 4 --tokens 1 --repeat 1 --output json"};
  for (const std::string& arguments : calls) {
    const Result result = run(arguments + (arguments.starts_with("bench") ? "" : " --json"));
    ASSERT_EQ(result.code, 0) << arguments << result.err;
    const std::string schema = result.json().at("schema").get<std::string>();
    EXPECT_TRUE(schema.starts_with("motet.") && schema.ends_with("/1")) << schema;
  }
}

TEST_F(Program, AnUnwritableStderrKeepsTheExitCode) {
  const auto code = [](const char* arguments) { return WEXITSTATUS(std::system((std::string(MOTET_BIN_DIR "/motet ") + arguments).c_str())); };
  EXPECT_EQ(code("inspect /nonexistent 2>/dev/full"), 5);
  EXPECT_EQ(code("inspect /nonexistent 2>&-"), 5);
  EXPECT_EQ(code("run x --chekc 2>/dev/full"), 2);
  EXPECT_EQ(code("list >/dev/full 2>/dev/null"), 5);
  EXPECT_EQ(code("--help >/dev/full 2>/dev/null"), 5);
}

TEST_F(Program, NumbersAreWholeAndInRange) {
  for (const char* arguments : {"--tokens ''", "--tokens 1.5", "--tokens 9223372036854775808", "--seed -1", "--repeat 0", "--threads -1", "--threads x"}) {
    EXPECT_EQ(run("run " + golden_ + " " + arguments).code, 2) << arguments;
  }
  EXPECT_EQ(run("bench gpt-oss-20b --experts 4 --repeat 9223372036854775807").code, 2);
}

TEST_F(Program, NamesFromFilesCannotSteerTheTerminal) {
  fs::copy(golden_, work_ / "ckpt");
  std::ofstream(work_ / "ckpt" / "stale\x1b[31m\xc2\x9b" "2J.safetensors") << "x";
  const Result result = run("inspect " + (work_ / "ckpt").string());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(result.out.find("\xc2\x9b"), std::string::npos);
}

TEST_F(Program, TablesHaveNoColourOffATerminal) {
  EXPECT_EQ(run("doctor").out.find('\033'), std::string::npos);
  EXPECT_EQ(run("inspect " + golden_).out.find('\033'), std::string::npos);
}

TEST_F(Program, BenchCellsHoldTheNamedFields) {
  const Result result = run("bench qwen3-30b-a3b --experts 8 --format bf16 --tokens 1,4 --repeat 2 --output json");
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json document = result.json();
  ASSERT_EQ(document.at("cells").size(), 2U);
  for (const auto& cell : document.at("cells")) {
    for (const char* field : {"shape", "format", "tokens", "threads", "arithmetic", "residence", "target", "median_ms", "p90_ms", "gb_per_s", "gflop_per_s", "limit", "share"}) {
      EXPECT_TRUE(cell.contains(field)) << field;
    }
    EXPECT_GT(cell.at("median_ms").get<double>(), 0);
  }
}

TEST_F(Program, RunSaysTheShareOfTheLimitAndWhatWasReadForIt) {
  const Result text = run("run " + golden_ + " --layer all");
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("% of this machine's limit, which is "), std::string::npos) << text.out;
  double shortest = 1e9;
  for (int attempt = 0; attempt < 10 && shortest > 0.3; ++attempt) {  // other programs may delay some
    const Result result = run("run " + golden_ + " --layer all --json");
    ASSERT_EQ(result.code, 0) << result.err;
    const nlohmann::json document = result.json();
    shortest = std::min(shortest, document.at("rates").at("seconds").get<double>());
    for (const auto& layer : document.at("layers")) {
      EXPECT_GT(layer.at("share").get<double>(), 0);
      EXPECT_GT(layer.at("read").at("bytes_per_second").get<double>(), 0);
      EXPECT_GT(layer.at("read").at("bytes").get<std::int64_t>(), 0);
      EXPECT_LE(layer.at("read").at("bytes").get<std::int64_t>(), layer.at("weight_bytes").get<std::int64_t>());
    }
  }
  EXPECT_LE(shortest, 0.3);
  EXPECT_NE(run("run " + golden_ + " --tokens 0").out.find("nothing was read"), std::string::npos);
  EXPECT_FALSE(run("run " + golden_ + " --no-probe --json").json().at("layers").at(0).contains("read"));
}

TEST_F(Program, ExitCodesTellTheKindOfFailure) {
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("inspect /nonexistent").code, 5);
  EXPECT_EQ(run("run " + golden_ + " --backend reference --residence packed").code, 3);
  EXPECT_EQ(run("run " + golden_ + " --memory-limit 4KiB").code, 4);
  EXPECT_EQ(run("plan " + golden_ + " --memory-limit 4KiB").code, 4);
  EXPECT_EQ(run("plan " + golden_ + " --layer 99").code, 2);
  EXPECT_EQ(run("run " + golden_ + " --tokens -1").code, 2);
  EXPECT_EQ(run("plan " + golden_ + " --layer -5").code, 2);
  EXPECT_EQ(run("run " + golden_ + " --layer 0,0").code, 2);
}

TEST_F(Program, RefusalsNameWhatIsNotBuilt) {
  const Result packed = run("run " + golden_ + " --backend reference --residence packed");
  EXPECT_NE(packed.err.find("packed"), std::string::npos) << packed.err;
  const Result substituted =
      run("run " + golden_ + " --backend reference --residence packed --allow-substitution --json --no-probe");
  ASSERT_EQ(substituted.code, 0) << substituted.err;
  EXPECT_EQ(substituted.json().at("layers").at(0).at("substitutions").size(), 1U);
}

TEST_F(Program, WhatDoesNotFitIsRefusedBeforeItIsMade) {
  EXPECT_EQ(run("run " + golden_ + " --tokens 4611686018427387904").code, 2);  // no row numbers that large
  const Result run_limit = run("run " + golden_ + " --tokens 8000000 --memory-limit 100MiB");
  EXPECT_EQ(run_limit.code, 4) << run_limit.err;
  const Result bench_limit = run("bench deepseek-v3 --memory-limit 1GiB");
  EXPECT_EQ(bench_limit.code, 4) << bench_limit.err;
  EXPECT_EQ(run("bench gpt-oss-20b --experts 2").code, 2);  // top_k 4
}

TEST_F(Program, InputTensorsThatNobodyReadsAreSaid) {
  const std::vector<float> hidden(288, 0.5F), logits(16, 1);
  write_tensor_file((work_ / "in.safetensors").string(), {{"hidden_states", DType::f32, {1, 288}, hidden.data()}, {"router_logit", DType::f32, {1, 16}, logits.data()}});
  const Result result = run("run " + golden_ + " --no-probe --input " + (work_ / "in.safetensors").string());
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.err.find("router_logit"), std::string::npos) << result.err;
}

TEST_F(Program, OutputFilesAppearWholeOrNotAtAll) {
  const fs::path output = work_ / "result.safetensors";
  ASSERT_EQ(run("run " + golden_ + " --tokens 5 --output " + output.string()).code, 0);
  const auto file = TensorFile::open(output.string());
  ASSERT_NE(file->find("output"), nullptr);
  EXPECT_EQ(file->find("output")->shape, (std::vector<std::int64_t>{5, 288}));
  EXPECT_EQ(file->find("top_k_index")->dtype, DType::i32);
  EXPECT_EQ(file->find("top_k_weights")->dtype, DType::f32);
  const Result failed = run("run " + golden_ + " --output " + (work_ / "no/such/folder/x.safetensors").string());
  EXPECT_NE(failed.code, 0);
  EXPECT_EQ(run("run " + golden_ + " --output /dev/null").code, 5);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(work_)) left += entry.path().filename().string().starts_with(".motet-") ? 1U : 0U;
  EXPECT_EQ(left, 0U);
}

TEST_F(Program, AllLayersAreRunAndNamed) {
  const fs::path output = work_ / "all.safetensors";
  const Result result = run("run " + golden_ + " --layer all --tokens 3 --check --json --output " + output.string());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.json().at("layers").size(), 2U);
  const auto file = TensorFile::open(output.string());
  EXPECT_NE(file->find("layers.0.output"), nullptr);
  EXPECT_NE(file->find("layers.1.top_k_weights"), nullptr);
}

TEST_F(Program, TraceIsTraceEventJson) {
  const fs::path trace = work_ / "trace.json";
  ASSERT_EQ(run("run " + golden_ + " --repeat 2 --trace " + trace.string()).code, 0);
  const nlohmann::json events = nlohmann::json::parse(slurp(trace)).at("traceEvents");
  ASSERT_FALSE(events.empty());
  for (const auto& event : events) EXPECT_EQ(event.at("ph"), "X");
}

TEST_F(Program, ZeroTokensAreANumberOfTokens) {
  const Result result = run("run " + golden_ + " --tokens 0 --json --output " + (work_ / "zero.safetensors").string());
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(TensorFile::open((work_ / "zero.safetensors").string())->find("output")->shape, (std::vector<std::int64_t>{0, 288}));
}

TEST_F(Program, InputsOfWrongShapeAreNamed) {
  const std::vector<float> values(3 * 100, 0.5F);
  const fs::path input = work_ / "in.safetensors";
  write_tensor_file(input.string(), {{"hidden_states", DType::f32, {3, 100}, values.data()}});
  const Result result = run("run " + golden_ + " --input " + input.string());
  EXPECT_EQ(result.code, 5);
  for (const char* word : {"in.safetensors", "hidden_states", "288", "[3, 100]"}) EXPECT_NE(result.err.find(word), std::string::npos) << word << ": " << result.err;
}

TEST_F(Program, GivenRoutingIsTakenAsItIs) {
  std::vector<float> hidden(2 * 288);
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = static_cast<float>(i % 13) / 13 - 0.5F;
  const std::vector<std::int32_t> index = {3, 1, 7, 5, 0, 2, -1, 9};
  const std::vector<float> weights = {0.5F, 2, 0.25F, 1, 1, 1, 5, 3};
  write_tensor_file((work_ / "in.safetensors").string(), {{"hidden_states", DType::f32, {2, 288}, hidden.data()},
                                                          {"top_k_index", DType::i32, {2, 4}, index.data()},
                                                          {"top_k_weights", DType::f32, {2, 4}, weights.data()}});
  ASSERT_EQ(run("run " + golden_ + " --check --input " + (work_ / "in.safetensors").string() + " --output " + (work_ / "out.safetensors").string()).code, 0);
  const auto file = TensorFile::open((work_ / "out.safetensors").string());
  EXPECT_EQ(std::memcmp(file->find("top_k_index")->data, index.data(), index.size() * 4), 0);
  EXPECT_EQ(std::memcmp(file->find("top_k_weights")->data, weights.data(), weights.size() * 4), 0);
}

TEST_F(Program, ExpertIdsOutOfRangeAreAnErrorBeforeAnyWork) {
  const std::vector<float> hidden(288, 0.5F), weights(4, 1);
  const std::vector<std::int32_t> index = {0, 1, 2, 16};
  write_tensor_file((work_ / "in.safetensors").string(), {{"hidden_states", DType::f32, {1, 288}, hidden.data()},
                                                          {"top_k_index", DType::i32, {1, 4}, index.data()},
                                                          {"top_k_weights", DType::f32, {1, 4}, weights.data()}});
  const Result result = run("run " + golden_ + " --input " + (work_ / "in.safetensors").string());
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("16"), std::string::npos) << result.err;
}

TEST_F(Program, CompletionCoversEveryCommand) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Result result = run(std::string("completion ") + shell);
    EXPECT_EQ(result.code, 0);
    for (const char* word : {"doctor", "inspect", "bench", "tokens", "allow-substitution"}) EXPECT_NE(result.out.find(word), std::string::npos) << shell << " " << word;
  }
  EXPECT_EQ(std::system((std::string("bash -n -c \"$(" MOTET_BIN_DIR "/motet completion bash)\"")).c_str()), 0);
}

TEST_F(Program, InterruptEndsCleanly) {
  EXPECT_EQ(WEXITSTATUS(std::system("timeout -s INT 1 " MOTET_BIN_DIR "/motet check >/dev/null 2>&1; test $? = 124")), 0);  // 124: timeout's, after its child ended
  const fs::path output = work_ / "never.safetensors";
  const std::string command = MOTET_BIN_DIR "/motet run " + golden_ + " --repeat 100000000 --no-probe --output " + output.string() + " 2>/dev/null & pid=$!; sleep 0.7; kill -INT $pid; wait $pid; exit $?";
  const int status = std::system(("bash -c '" + command + "'").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 130);
  for (const auto& entry : fs::directory_iterator(work_)) EXPECT_FALSE(entry.path().filename().string().starts_with("never") || entry.path().filename().string().starts_with(".motet-")) << entry.path();
}

TEST_F(Program, ForcedTargetsAreTakenAndSaid) {
  for (const TargetFacts& target : Environment::probe().targets) {
    if (!target.usable) continue;
    const Result result = run("run " + golden_ + " --tokens 2 --json --no-probe", "MOTET_TARGET=" + target.name);
    ASSERT_EQ(result.code, 0) << target.name << result.err;
    EXPECT_EQ(result.json().at("layers").at(0).at("target"), target.name);
  }
  EXPECT_EQ(run("doctor", "MOTET_TARGET=sse9").code, 3);
}

TEST_F(Program, CheckWritesJUnit) {
  const fs::path report = work_ / "report.xml";
  ASSERT_EQ(run("check " + golden_ + " --junit " + report.string()).code, 0);
  const std::string text = slurp(report);
  EXPECT_NE(text.find("failures=\"0\""), std::string::npos) << text;
  for (const ListEntry& target : targets())
    for (const char* way : {"exact", "bf16", "fast", "exact/packed", "bf16/packed"})
      EXPECT_NE(text.find("/cpu/" + target.name + "/" + way + "\""), std::string::npos) << target.name << ", " << way;
  EXPECT_EQ(run("check --filter no_such_case_anywhere").code, 2);
}

TEST_F(Program, RunSpreadsALayerOverRanksAndSaysWhatTheySent) {
  for (const char* spread : {"--ranks 2", "--ranks 3 --fabric shm", "--tp 2 --ep 2 --strategy alltoall_single --wire fp32", "--ranks 2 --replicated --fabric shm", "--ranks 3 --chunk-tokens 2"}) {
    const Result result = run("run " + golden_ + " --tokens 9 --check --no-probe --repeat 2 --json " + spread);
    ASSERT_EQ(result.code, 0) << spread << result.err;
    const nlohmann::json layer = result.json()["layers"][0], exchange = layer["exchange"];
    EXPECT_TRUE(layer["check"]["ok"]);
    EXPECT_EQ(layer["tokens"], 9);
    const auto ranks = exchange["ranks"].size();
    EXPECT_EQ(exchange["tp"].get<std::size_t>() * exchange["ep"].get<std::size_t>(), ranks);
    std::int64_t tokens = 0, rows = 0, load = 0;
    for (const auto& rank : exchange["ranks"]) {
      tokens += rank["tokens"].get<std::int64_t>(), rows += rank["rows"].get<std::int64_t>();
      EXPECT_EQ(rank["bytes_sent"].size(), ranks);
      EXPECT_GT(rank["bytes_sent"][0], 0);
    }
    EXPECT_EQ(tokens, exchange["placement"] == "replicated" ? 9 * static_cast<std::int64_t>(ranks) : 9) << spread;
    EXPECT_EQ(rows, layer["rows"]);
    for (const auto& each : layer["expert_load"]) load += each.get<std::int64_t>();
    EXPECT_EQ(load * exchange["tp"].get<std::int64_t>(), rows) << spread << ": each tp rank has a part of every row";
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space of their own
TEST_F(Program, RanksThatGetNoThreadEndTheRunByName) {
  const Result result = run("run " + golden_ + " --tokens 9 --no-probe --ranks 64", "ulimit -v 450000;");
  EXPECT_EQ(result.code, 4) << result.err;
  EXPECT_NE(result.err.find("starting rank"), std::string::npos) << result.err;
}
#endif

TEST_F(Program, RanksGiveTheSameOutputFileWhateverCarriesThem) {
  const auto output = [&](const std::string& spread) {
    const std::string path = (work_ / "out.safetensors").string();
    EXPECT_EQ(run("run " + golden_ + " --tokens 7 --no-probe --output " + path + " " + spread).code, 0) << spread;
    return slurp(path);
  };
  const std::string one = output("--invariant");
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(output("--invariant --chunk-tokens 4"), one);
  EXPECT_EQ(output("--invariant --ranks 3"), one);
  EXPECT_EQ(output("--invariant --ranks 3 --chunk-tokens 2"), one);
  EXPECT_EQ(output("--invariant --ranks 2 --fabric shm"), one);
  EXPECT_EQ(output("--ranks 2 --hook identity"), output("--ranks 2"));
  EXPECT_NE(output("--ranks 2 --hook scale_by_expert"), output("--ranks 2"));
}

TEST_F(Program, HooksAreCheckedWithTheWeightsThatTheyApply) {
  for (const char* ranks : {"", " --ranks 2"})
    EXPECT_EQ(run("run " + golden_ + " --tokens 8 --no-probe --check --hook scale_by_expert" + ranks).code, 0) << ranks;
}

TEST_F(Program, RanksThatDoNotAddUpOrCannotBeAreRefusedByName) {
  const struct {
    const char* arguments;
    int code;
    const char* words;
  } cases[] = {{"--ranks 3 --tp 2", 2, "--ranks is tp x ep"},
               {"--ranks 4 --tp 2 --ep 4", 2, "--ranks is tp x ep"},
               {"--ranks 2 --strategy alltoal", 2, "Did you mean 'alltoall'"},
               {"--ranks 2 --fabric smh", 2, "Did you mean 'shm'"},
               {"--ranks 2 --hook identiy", 2, "Did you mean 'identity'"},
               {"--ranks 2 --deadline 0", 2, "--deadline"},
               {"--chunk-tokens -1", 2, "--chunk-tokens"},
               {"--ranks 2 --strategy low_latency --hook identity", 3, "hook_weights_in_combine"},
               {"--ranks 2 --wire fp8", 3, "wire_not_built"},
               {"--strategy alltoall", 3, "strategy_needs_ranks"}};
  for (const auto& each : cases) {
    const Result result = run("run " + golden_ + " --no-probe " + each.arguments);
    EXPECT_EQ(result.code, each.code) << each.arguments << result.err;
    EXPECT_NE(result.err.find(each.words), std::string::npos) << each.arguments << ": " << result.err;
  }
}

TEST_F(Program, AnMpiModuleThatIsNotThereIsNamed) {
  const Result result = run("run " + golden_ + " --no-probe --fabric mpi", "MOTET_MPI_MODULE=/no/such/module.so");
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_NE(result.err.find("/no/such/module.so"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace motet
