// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "checkpoint/refusal_testing.h"

namespace motet {
namespace {

using testing::expect_words;
using testing::TempDir;
using testing::TestCheckpoint;

bool mapped(const TempDir& dir) { return testing::read_file("/proc/self/maps").find(dir.str()) != std::string::npos; }

/// The sentence that load() refuses layer 0 with; nothing may stay mapped.
std::string load_refusal(const TestCheckpoint& checkpoint) {
  const TempDir dir;
  checkpoint.write(dir);
  const auto opened = Checkpoint::open(dir.str());
  try {
    opened->load(0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_FALSE(mapped(dir));
    return error.what();
  }
  return "accepted";
}

std::string f32(float value) { return std::string(reinterpret_cast<const char*>(&value), 4); }

TestCheckpoint with_byte(TestCheckpoint checkpoint, const std::string& name, std::size_t at, unsigned char byte) {
  testing::TestTensor& tensor = checkpoint[name];
  if (tensor.data.empty()) tensor.data = testing::filler(tensor);
  tensor.data[at] = static_cast<char>(byte);
  return checkpoint;
}

TEST(L18, ScalesThatBreakTheirFormatAreNamedWithExpert) {
  const std::string p = "model.layers.0.mlp.experts.";
  ASSERT_EQ(load_refusal(testing::gpt_oss_checkpoint()), "accepted");
  // gate_up scales [4, 192, 2]: byte 2 * (192 * 2 + 7) is row 7 of expert 2, row 3 of its up half.
  expect_words(load_refusal(with_byte(testing::gpt_oss_checkpoint(), p + "gate_up_proj_scales", 2 * (192 * 2 + 7), 0xFF)), {"gate_up_proj_scales", "expert 2", "up", "3"});
  expect_words(load_refusal(with_byte(testing::gpt_oss_checkpoint(), p + "down_proj_scales", 0, 0xFF)), {"down_proj_scales", "expert 0", "down"});
  TestCheckpoint nvfp4 = testing::qwen3_checkpoint(testing::write_nvfp4);
  ASSERT_EQ(load_refusal(nvfp4), "accepted");
  for (const int byte : {0x7f, 0xff, 0xb8}) expect_words(load_refusal(with_byte(nvfp4, p + "1.up_proj.weight_scale", 5, static_cast<unsigned char>(byte))), {"experts.1.up_proj.weight_scale", "expert 1"});
  TestCheckpoint fp8 = testing::qwen3_checkpoint(testing::write_fp8);
  fp8.config["quantization_config"] = {{"weight_block_size", {128, 128}}};
  ASSERT_EQ(load_refusal(fp8), "accepted");
  for (const float value : {0.f, -1.f, NAN, INFINITY}) {
    fp8[p + "3.down_proj.weight_scale_inv"].data = f32(1) + f32(1) + f32(value) + f32(1);
    expect_words(load_refusal(fp8), {"experts.3.down_proj.weight_scale_inv", "expert 3"});
  }
}

TEST(L18, TensorScalesMustBeFiniteAndPositive) {
  for (const float value : {0.f, -2.f, NAN, INFINITY}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_nvfp4);
    checkpoint["model.layers.0.mlp.experts.1.gate_proj.weight_scale_2"].data = f32(value);
    expect_words(load_refusal(checkpoint), {"experts.1.gate_proj.weight_scale_2", "finite and above 0"});
  }
}

TEST(L18, RouterAndBiasesMustBeFinite) {
  for (const char* const name : {"router.weight", "router.bias", "experts.gate_up_proj_bias", "experts.down_proj_bias"}) {
    TestCheckpoint checkpoint = with_byte(testing::gpt_oss_checkpoint(), "model.layers.0.mlp." + std::string(name), 2, 0x80);
    expect_words(load_refusal(with_byte(checkpoint, "model.layers.0.mlp." + std::string(name), 3, 0x7f)), {name, "element 1", "finite"});
  }
}

TEST(L18, BiasesThatTheFamilyDoesNotHaveMustBeZero) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint();
  checkpoint.add("model.layers.0.mlp.experts.0.up_proj.bias", DType::bf16, {144}, std::string(288, '\0'));
  EXPECT_EQ(load_refusal(checkpoint), "accepted");
  expect_words(load_refusal(with_byte(checkpoint, "model.layers.0.mlp.experts.0.up_proj.bias", 21, 0x3f)), {"experts.0.up_proj.bias", "element 10", "qwen3_moe"});
}

TEST(Nvfp4, GateAndUpKeepTheirOwnTensorScale) {
  for (const bool reciprocal : {false, true}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint([&](TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
      if (!reciprocal) return testing::write_nvfp4(out, module, rows, cols);
      out.add(module + ".weight_packed", DType::u8, {rows, cols / 2});
      out.add(module + ".weight_scale", DType::f8_e4m3, {rows, cols / 16});
      out.add(module + ".weight_global_scale", DType::f32, {1});
    });
    const std::string x = "model.layers.0.mlp.experts.2.", scale = reciprocal ? ".weight_global_scale" : ".weight_scale_2";
    checkpoint[x + "gate_proj" + scale].data = f32(3.f);
    checkpoint[x + "up_proj" + scale].data = f32(7.f);
    const TempDir dir;
    checkpoint.write(dir);
    const auto weights = Checkpoint::open(dir.str())->load(0);
    EXPECT_EQ(weights->experts[2].gate.tensor_scale, reciprocal ? 1.0 / 3.0 : 3.0);
    EXPECT_EQ(weights->experts[2].up.tensor_scale, reciprocal ? 1.0 / 7.0 : 7.0);
  }
}

TEST(Fp8, ScalesMayBeStoredInEveryTypeOfTheFormat) {
  for (const auto& [dtype, bytes] : {std::pair{DType::bf16, 2}, {DType::f8_e8m0, 1}}) {
    for (const char* const spelling : {".weight_scale_inv", ".weight_scale"}) {
      TestCheckpoint checkpoint = testing::qwen3_checkpoint([&](TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
        out.add(module + ".weight", DType::f8_e4m3, {rows, cols});
        out.add(module + spelling, dtype, {(rows + 127) / 128, (cols + 127) / 128});
      });
      checkpoint.config["quantization_config"] = {{"weight_block_size", {128, 128}}};
      const TempDir dir;
      checkpoint.write(dir);
      const auto opened = Checkpoint::open(dir.str());
      EXPECT_EQ(opened->layers()[0].spec.down.format, "fp8_block");
      const WeightView down = opened->load(0)->experts[1].down;     // 160 x 144: a grid of 2 x 2
      EXPECT_EQ(down.scale_dtype, dtype);
      EXPECT_EQ(down.scale_row_stride, 2 * bytes);
      EXPECT_EQ(down.scale_col_stride, bytes);
      const std::string scales = "model.layers.0.mlp.experts.1.down_proj" + std::string(spelling);
      TestCheckpoint broken = with_byte(checkpoint, scales, 0, 0xFF);
      if (bytes == 2) broken = with_byte(broken, scales, 1, 0xFF);
      expect_words(load_refusal(broken), {scales.c_str(), "expert 1"});
    }
  }
}

TEST(Fp8, NanCodesAreNotLookedFor) {
  TestCheckpoint fp8 = testing::qwen3_checkpoint(testing::write_fp8);
  fp8.config["quantization_config"] = {{"weight_block_size", {128, 128}}};
  EXPECT_EQ(load_refusal(with_byte(fp8, "model.layers.0.mlp.experts.0.up_proj.weight", 5, 0x7F)), "accepted");
}

TEST(VerifyUnchanged, TellsEachKindOfChange) {
  const TempDir dir;
  testing::qwen3_checkpoint().write(dir);
  const std::string path = dir / "model.safetensors";
  const auto weights = Checkpoint::open(dir.str())->load(0);
  EXPECT_TRUE(weights->verify_unchanged().ok());
  EXPECT_TRUE(mapped(dir));
  const std::string bytes = testing::read_file(path);
  const auto expect_change = [&](const char* word) {
    const RunStatus status = weights->verify_unchanged();
    EXPECT_EQ(status.code, ErrorCode::file_changed);
    expect_words(std::string(status.text()), {"model.safetensors", word});
  };
  std::filesystem::resize_file(path, 1000);
  expect_change("shrank");
  testing::write_file(dir / "new", bytes);
  std::filesystem::rename(dir / "new", path);
  expect_change("was replaced");
  std::filesystem::remove(path);
  expect_change("is gone");
}

TEST(VerifyUnchanged, AFileThatChangedBetweenOpenAndLoadIsRefused) {
  const TempDir dir;
  testing::qwen3_checkpoint().write(dir);
  const auto opened = Checkpoint::open(dir.str());
  std::filesystem::resize_file(dir / "model.safetensors", 1000);
  try {
    opened->load(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::file_changed);
  }
  EXPECT_FALSE(mapped(dir));
}

TEST(Load, ViewsOutliveTheCheckpointAndUnmapWithTheLast) {
  const TempDir dir;
  testing::gpt_oss_checkpoint().write(dir);
  auto weights = Checkpoint::open(dir.str())->load(0);
  EXPECT_TRUE(mapped(dir));
  EXPECT_NE(weights->experts[3].down.codes[0], std::byte{0});
  weights.reset();
  EXPECT_FALSE(mapped(dir));
}

}  // namespace
}  // namespace motet
