// SPDX-License-Identifier: Apache-2.0
#include "motet/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ctime>
#include <filesystem>

#include "checkpoint/refusal_testing.h"
#include "checkpoint/source.h"
#include "formats/layer_weights.h"

namespace motet {
namespace {

namespace fs = std::filesystem;
using testing::expect_words;
using testing::refusal;
using testing::TempDir;
using testing::TestCheckpoint;

std::string all_notes(const Checkpoint& checkpoint) {
  std::string out;
  for (const std::string& note : checkpoint.notes()) out += note + "\n";
  return out;
}

// ---------------------------------------------------------------- where a checkpoint lies

TEST(Source, OpensDirectorySingleFileAndShards) {
  const TempDir single, sharded;
  testing::qwen3_checkpoint().write(single);
  testing::qwen3_checkpoint().write_shards(sharded, 3);
  EXPECT_EQ(Checkpoint::open(single.str())->layers().size(), 1u);
  EXPECT_EQ(Checkpoint::open(single / "model.safetensors")->layers().size(), 1u);
  const auto checkpoint = Checkpoint::open(sharded.str());
  EXPECT_EQ(checkpoint->tensors().size(), testing::qwen3_checkpoint().tensors.size());
  EXPECT_EQ(checkpoint->layers()[0].bytes, Checkpoint::open(single.str())->layers()[0].bytes);
  EXPECT_NO_THROW(checkpoint->load(0));
}

TEST(Source, OpensAHubIdFromTheCacheThroughLinks) {
  const TempDir cache, weights;
  testing::qwen3_checkpoint().write(weights);
  const fs::path repository = fs::path(cache.str()) / "models--own-er--some_model";
  fs::create_directories(repository / "snapshots/abc123");
  fs::create_directories(repository / "blobs");
  fs::create_directories(repository / "refs");
  for (const char* const name : {"config.json", "model.safetensors"}) {
    fs::copy_file(weights / name, repository / "blobs" / name);
    fs::create_symlink(fs::path("../../blobs") / name, repository / "snapshots/abc123" / name);
  }
  testing::write_file((repository / "refs/main").string(), "abc123\n");
  ::setenv("HF_HUB_CACHE", cache.str().c_str(), 1);
  EXPECT_EQ(Checkpoint::open("own-er/some_model")->layers().size(), 1u);
  EXPECT_NO_THROW(Checkpoint::open("own-er/some_model")->load(0));
  expect_words(refusal("own-er/other", ErrorCode::io_error), {"own-er/other", "downloads nothing", "HF_HUB_CACHE"});
  testing::write_file((repository / "refs/main").string(), "../../etc");
  expect_words(refusal("own-er/some_model"), {"refs/main", "../../etc"});
  testing::write_file((repository / "refs/main").string(), "fff");
  expect_words(refusal("own-er/some_model", ErrorCode::io_error), {"snapshot fff"});
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", cache.str().c_str(), 1);
  fs::create_directory(fs::path(cache.str()) / "hub");
  fs::rename(repository, fs::path(cache.str()) / "hub/models--own-er--some_model");
  testing::write_file((fs::path(cache.str()) / "hub/models--own-er--some_model/refs/main").string(), "abc123");
  EXPECT_EQ(Checkpoint::open("own-er/some_model")->layers().size(), 1u);
  ::unsetenv("HF_HOME");
}

TEST(Source, WithoutAHomeThereIsNoCache) {
  const char* const home = std::getenv("HOME");
  const std::string kept = home ? home : "";
  ::unsetenv("HOME");
  ::unsetenv("HF_HOME");
  ::unsetenv("HF_HUB_CACHE");
  const TempDir dir;
  fs::create_directories(dir / ".cache/huggingface/hub/models--own-er--some_model");
  const fs::path before = fs::current_path();
  fs::current_path(dir.str());
  expect_words(refusal("own-er/some_model", ErrorCode::io_error), {"own-er/some_model", "HOME are unset"});
  fs::current_path(before);
  if (home) ::setenv("HOME", kept.c_str(), 1);
}

TEST(Source, SaysWhatLiesThereInstead) {
  const TempDir dir;
  expect_words(refusal(dir / "nowhere", ErrorCode::io_error), {"does not exist"});
  expect_words(refusal(dir.str()), {"config.json"});
  testing::write_file(dir / "config.json", "{\"model_type\":\"mixtral\"}");
  expect_words(refusal(dir.str()), {"neither", "model.safetensors"});
  testing::write_file(dir / "pytorch_model.bin", "x");
  expect_words(refusal(dir.str()), {"pytorch_model.bin"});
  testing::write_file(dir / "model-00001-of-00002.safetensors", "x");
  expect_words(refusal(dir.str()), {"need their index"});
  testing::write_file(dir / "1f.incomplete", "x");
  expect_words(refusal(dir.str()), {"1f.incomplete", "unfinished download"});
  expect_words(refusal(dir / "pytorch_model.bin"), {"neither a directory nor a .safetensors file"});
}

TEST(Index, RefusesPathsDuplicatesAndWhatIsNoIndex) {
  const auto refused = [](std::string_view text) -> std::string {
    try {
      parse_index(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const char* const name : {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "a\\\\b", "..", "", "x\\u0000y"}) {
    expect_words(refused("{\"weight_map\":{\"t\":\"" + std::string(name) + "\"}}"), {"'t'", "no plain file name"});
  }
  expect_words(refused(R"({"weight_map":{"t":"a","t":"b"}})"), {"t"});
  expect_words(refused(R"({"weight_map":{}})"), {"weight_map"});
  expect_words(refused(R"({"weight_map":{"t":1}})"), {"model.safetensors.index.json"});
  EXPECT_EQ(refused(R"({"metadata":{"total_size":1},"weight_map":{"t":"a"}})"), "accepted");
}

TEST(Index, DecidesWhichShardHoldsANameAndIgnoresStaleCopies) {
  const TempDir dir;
  TestCheckpoint checkpoint = testing::gpt_oss_checkpoint();
  checkpoint.write_shards(dir, 2);
  // A third shard, and an old single file, hold a copy of the router with another shape.
  const std::vector<testing::TestTensor> stale = {{"model.layers.0.mlp.router.weight", DType::bf16, {3, 3}, {}}, {"model.norm.weight", DType::bf16, {64}, {}}};
  Json index = Json::parse(testing::read_file(dir / "model.safetensors.index.json"));
  index["weight_map"]["model.norm.weight"] = "extra.safetensors";
  testing::write_file(dir / "model.safetensors.index.json", index.dump());
  testing::write_file(dir / "extra.safetensors", testing::file_text(stale));
  testing::write_file(dir / "model.safetensors", testing::file_text(stale));
  const auto opened = Checkpoint::open(dir.str());
  for (const TensorInfo& tensor : opened->tensors()) {
    if (tensor.name == "model.layers.0.mlp.router.weight") { EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{4, 64})); }
  }
  expect_words(all_notes(*opened), {"extra.safetensors: 1 tensors", "model.safetensors is not read"});
}

TEST(Index, ShardsThatNoMoeLayerNeedsMayBeAbsentOrBroken) {
  const TempDir dir;
  testing::gpt_oss_checkpoint().write_shards(dir, 2);
  Json index = Json::parse(testing::read_file(dir / "model.safetensors.index.json"));
  index["weight_map"]["lm_head.weight"] = "head.safetensors";
  index["weight_map"]["model.embed_tokens.weight"] = "embed.safetensors";
  testing::write_file(dir / "model.safetensors.index.json", index.dump());
  testing::write_file(dir / "embed.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n");
  const auto opened = Checkpoint::open(dir.str());
  expect_words(all_notes(*opened), {"head.safetensors holds no tensor of an MoE layer", "embed.safetensors", "Git LFS pointer"});
  EXPECT_EQ(opened->tensors().size(), testing::gpt_oss_checkpoint().tensors.size()) << "tensors of shards that were read";
  fs::remove(dir / TestCheckpoint::shard_name(1, 2));
  expect_words(refusal(dir.str(), ErrorCode::io_error), {"model-2-of-2.safetensors", "the index says that it holds 'model.layers.0.mlp."});
}

TEST(Index, ANameThatTheShardLacksIsNamedWithTheShard) {
  const TempDir dir;
  testing::gpt_oss_checkpoint().write_shards(dir, 2);
  Json index = Json::parse(testing::read_file(dir / "model.safetensors.index.json"));
  index["weight_map"]["model.extra"] = "model-1-of-2.safetensors";
  testing::write_file(dir / "model.safetensors.index.json", index.dump());
  expect_words(refusal(dir.str()), {"model-1-of-2.safetensors", "'model.extra'"});
}

// ---------------------------------------------------------------- L18: what headers tell

TEST(L18, MissingTensorsAreNamed) {
  for (const char* const name : {"model.layers.0.mlp.experts.3.down_proj.weight", "model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.gate.weight"}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint();
    checkpoint.remove(name);
    expect_words(refusal(checkpoint), {std::string(name).substr(0, std::string(name).rfind('.')).c_str(), "missing"});
  }
  for (const char* const name : {"router.bias", "experts.down_proj_bias", "experts.gate_up_proj_scales", "experts.gate_up_proj_blocks"}) {
    TestCheckpoint checkpoint = testing::gpt_oss_checkpoint();
    checkpoint.remove("model.layers.0.mlp." + std::string(name));
    expect_words(refusal(checkpoint), {"missing", "model.layers.0.mlp."});
  }
  for (const char* const name : {"weight_scale", "weight_scale_2", "weight"}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_nvfp4);
    checkpoint.remove("model.layers.0.mlp.experts.2.up_proj." + std::string(name));
    expect_words(refusal(checkpoint), {"missing", "experts.2.up_proj"});
  }
}

TEST(L18, UnexplainedTensorsOfAnMoeLayerAreNamed) {
  for (const char* const name : {"experts.4.up_proj.weight", "experts.0.up_proj.weight_extra", "experts.gate_up_proj", "shared_expert.up_proj.weight", "gate.e_score_correction_bias"}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint();
    checkpoint.add("model.layers.0.mlp." + std::string(name), DType::bf16, {4});
    expect_words(refusal(checkpoint), {name, "no rule explains"});
  }
  TestCheckpoint outside = testing::qwen3_checkpoint();
  outside.add("model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {4});
  EXPECT_EQ(refusal(outside), "accepted");
}

TEST(L18, ShapesAreComparedWithTheConfigScalesIncluded) {
  struct Case { testing::MatrixWriter write; const char* name; std::vector<std::int64_t> shape; };
  const std::string up = "model.layers.0.mlp.experts.1.up_proj.";
  const Case cases[] = {{testing::write_bf16, "weight", {160, 144}}, {testing::write_bf16, "weight", {144, 161}}, {testing::write_bf16, "weight", {1, 144, 160}},
                        {testing::write_nvfp4, "weight", {144, 160}}, {testing::write_nvfp4, "weight_scale", {144, 5}}, {testing::write_nvfp4, "weight_scale_2", {2}},
                        {testing::write_nvfp4, "input_scale", {144}}, {testing::write_fp8, "weight_scale_inv", {1, 2}}, {testing::write_fp8, "weight", {144, 159}}};
  for (const Case& one : cases) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint(one.write);
    checkpoint.config["quantization_config"] = {{"weight_block_size", {128, 128}}};
    ASSERT_EQ(refusal(checkpoint), "accepted");
    checkpoint[up + one.name].shape = one.shape;
    expect_words(refusal(checkpoint), {(up + one.name).c_str(), "shape"});
  }
  for (const char* const key : {"hidden_size", "moe_intermediate_size", "num_experts"}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint();
    checkpoint.config[key] = 8;
    EXPECT_NE(refusal(checkpoint), "accepted") << key;
  }
  TestCheckpoint oss = testing::gpt_oss_checkpoint();
  oss["model.layers.0.mlp.experts.down_proj_scales"].shape = {4, 64, 2};
  expect_words(refusal(oss), {"down_proj_scales", "[4, 64, 3]"});
}

TEST(L18, DtypesAreComparedWithTheRole) {
  struct Case { const char* name; DType dtype; const char* word; };
  for (const Case& one : {Case{"router.weight", DType::u8, "scale"}, {"router.bias", DType::i32, "I32"}, {"experts.gate_up_proj_scales", DType::i8, "E8M0"}, {"experts.gate_up_proj_blocks", DType::f8_e4m3, "F8_E4M3"}, {"experts.down_proj_bias", DType::f64, "F64"}}) {
    TestCheckpoint checkpoint = testing::gpt_oss_checkpoint();
    checkpoint["model.layers.0.mlp." + std::string(one.name)].dtype = one.dtype;
    expect_words(refusal(checkpoint), {one.name, one.word});
  }
}

TEST(L18, ConfigsThatCannotBeAreRefused) {
  struct Case { const char* key; Json value; const char* word; };
  for (const Case& one : {Case{"num_experts_per_tok", 5, "5 of 4"}, {"num_experts_per_tok", 0, "0 of 4"}, {"num_experts", 0, "experts 0"}, {"num_hidden_layers", 1000000000000LL, "1000000000000 layers"},
                          {"num_hidden_layers", 0, "none of the 0"}, {"moe_intermediate_size", INT64_MAX, "range"}, {"hidden_size", "160", "whole number"}, {"hidden_act", "tanh", "tanh"}}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint();
    checkpoint.config[one.key] = one.value;
    expect_words(refusal(checkpoint, std::string(one.key) == "hidden_act" ? ErrorCode::not_supported : ErrorCode::bad_input), {one.word});
  }
  TestCheckpoint dense = testing::qwen3_checkpoint(testing::write_bf16, 2);
  dense.config["mlp_only_layers"] = {1};
  expect_words(refusal(dense), {"layer 1 is dense", "model.layers.1.mlp.experts.0"});
}

TEST(L18, RealFilesAreNotRefusedForWhatTheyCarry) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint();
  checkpoint.add("model.layers.1.mlp.experts.0.up_proj.weight", DType::bf16, {7});        // behind the trunk
  checkpoint.add("mtp.layers.0.mlp.experts.0.up_proj.weight", DType::bf16, {7});
  checkpoint.add("model.layers.0.mlp.experts.0.up_proj.bias", DType::bf16, {144}, std::string(288, '\0'));
  const TempDir dir;
  checkpoint.write(dir);
  fs::create_directory(dir / "original");
  testing::write_file(dir / "original/model.safetensors", "broken");
  const auto opened = Checkpoint::open(dir.str());
  expect_words(all_notes(*opened), {"layer 1: 1 tensors behind the trunk", "mtp.layers.0", "1 biases", "original/"});
  EXPECT_NO_THROW(opened->load(0));
}

TEST(L18, MissingInputScalesAreTold) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_nvfp4);
  checkpoint.remove("model.layers.0.mlp.experts.1.down_proj.input_scale");
  const TempDir dir;
  checkpoint.write(dir);
  expect_words(all_notes(*Checkpoint::open(dir.str())), {"1 of 12", "experts.1.down_proj", "none is made up"});
}

TEST(Layers, AskedForByNumber) {
  const TempDir dir;
  testing::qwen3_checkpoint(testing::write_bf16, 3).write(dir);
  const auto checkpoint = Checkpoint::open(dir.str());
  EXPECT_EQ(checkpoint->layer(2).spec.layer, 2);
  try {
    checkpoint->layer(3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    expect_words(error.what(), {"layer 3", "0, 1, 2"});
  }
}

TEST(Open, HundredShardsOfFortyThousandTensorsUnderALowDescriptorLimit) {
  const TempDir dir;
  // 52 layers x 256 experts x 3 matrices = 39,936 tensors in 100 sparse shards.
  TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_bf16, 52, 2048, 768, 256);
  checkpoint.config["num_experts_per_tok"] = 8;
  testing::write_file(dir / "config.json", checkpoint.config.dump());
  Json map = Json::object();
  std::vector<std::vector<testing::TestTensor>> parts(100);
  for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i) {
    const std::size_t shard = i * 100 / checkpoint.tensors.size();
    parts[shard].push_back(checkpoint.tensors[i]);
    map[checkpoint.tensors[i].name] = TestCheckpoint::shard_name(shard, 100);
  }
  for (std::size_t i = 0; i < 100; ++i) testing::write_sparse(dir / TestCheckpoint::shard_name(i, 100), parts[i]);
  testing::write_file(dir / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit low{24, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::clock_t start = std::clock();  // of the processor: other programs do not count
  const auto opened = Checkpoint::open(dir.str());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const auto weights = opened->load(51);
  ::setrlimit(RLIMIT_NOFILE, &old);
  RecordProperty("open_seconds", std::to_string(seconds));
  EXPECT_EQ(opened->layers().size(), 52u);
  EXPECT_EQ(opened->tensors().size(), checkpoint.tensors.size());
  EXPECT_EQ(weights->experts.size(), 256u);
  EXPECT_EQ(opened->layers()[0].parameters, 256 * 3 * 2048LL * 768 + 256 * 2048);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(seconds, 1.0);
#endif
}

TEST(Open, ByteCountsOfGptOss20bInMxfp4) {
  const TempDir dir;
  TestCheckpoint checkpoint = testing::gpt_oss_checkpoint(1, 2880, 2880, 32);
  testing::write_file(dir / "config.json", checkpoint.config.dump());
  testing::write_sparse(dir / "model.safetensors", checkpoint.tensors);
  const auto opened = Checkpoint::open(dir.str());
  const LayerSummary& layer = opened->layers()[0];
  const std::int64_t expert = 5760 * 90 * 17 + 2880 * 90 * 17 + 2 * (5760 + 2880), router = 2 * 32 * 2880 + 2 * 32;
  EXPECT_EQ(layer.bytes, 32 * expert + router);
  EXPECT_EQ(layer.bytes_per_token, 4 * expert + router);
  EXPECT_EQ(layer.parameters, 32LL * 3 * 2880 * 2880 + 32 * 2880);
  EXPECT_EQ(layer.parameters_per_token, 4LL * 3 * 2880 * 2880 + 32 * 2880);
  EXPECT_EQ(opened->load(0)->bytes, layer.bytes);
}

}  // namespace
}  // namespace motet
