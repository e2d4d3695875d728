// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/matrix_tensors.h"

#include "checkpoint/refusal_testing.h"
#include "formats/layer_weights.h"

namespace motet {
namespace {

using testing::expect_words;
using testing::refusal;
using testing::TempDir;
using testing::TestCheckpoint;

TEST(L18, Fp8BlockSizeComesFromTheConfigNeverFromShapes) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_fp8);
  expect_words(refusal(checkpoint), {"weight_block_size", "never guessed"});
  checkpoint.config["quantization_config"] = {{"quant_method", "fp8"}};
  expect_words(refusal(checkpoint), {"weight_block_size", "never guessed"});
  checkpoint.config["quantization_config"]["weight_block_size"] = {64, 128};
  expect_words(refusal(checkpoint), {"weight_scale_inv", "64 x 128"});
  checkpoint.config["quantization_config"]["weight_block_size"] = {128, 128};
  const TempDir dir;
  checkpoint.write(dir);
  const auto opened = Checkpoint::open(dir.str());
  EXPECT_EQ(opened->layers()[0].spec.gate_up.format, "fp8_block");
  EXPECT_EQ(opened->layers()[0].spec.gate_up.block_rows, 128);
}

TEST(L18, AGroupSizeThatContradictsTheTensorsIsRefused) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_nvfp4);
  checkpoint.config["quantization_config"] = {{"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}, {"type", "float"}, {"group_size", 32}}}}}}}};
  expect_words(refusal(checkpoint), {"groups of 32", "nvfp4"});
}

/// Checkpoint whose per-expert matrices are these tensors, each of the matrix's extents.
TestCheckpoint spelled(const std::vector<std::pair<const char*, DType>>& tensors) {
  return testing::qwen3_checkpoint([&](TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
    for (const auto& [suffix, dtype] : tensors) out.add(module + "." + suffix, dtype, {rows, cols});
  });
}

TEST(L18, FormatsThatAreNotBuiltAreToldAndRefusedByName) {
  struct Case { std::vector<std::pair<const char*, DType>> tensors; const char* name; };
  const Case cases[] = {{{{"qweight", DType::i32}, {"qzeros", DType::i32}, {"scales", DType::f16}}, "int4 awq or gptq"},
                        {{{"weight_packed", DType::i32}, {"weight_scale", DType::bf16}, {"weight_shape", DType::i64}}, "int4 pack-quantized"},
                        {{{"weight", DType::f8_e4m3}, {"weight_scale", DType::f32}}, "fp8 per tensor or channel"},
                        {{{"weight", DType::f8_e4m3}, {"weight_scale_inv", DType::u8}}, "mxfp8"},
                        {{{"weight", DType::f8_e4m3}}, "fp8 without a scale"},
                        {{{"weight", DType::i8}, {"weight_scale", DType::f32}}, "int8"},
                        {{{"weight", DType::u8}, {"weight.absmax", DType::f32}}, "bitsandbytes"},
                        {{{"weight", DType::u8}, {"weight_scale", DType::f8_e4m3}, {"weight_scale_2", DType::f32}, {"pre_quant_scale", DType::f32}}, "nvfp4_awq"}};
  for (const Case& one : cases) {
    const TempDir dir;
    const TestCheckpoint written = spelled(one.tensors);
    written.write(dir);
    const auto opened = Checkpoint::open(dir.str());
    const LayerSummary& layer = opened->layers()[0];
    EXPECT_EQ(layer.spec.gate_up.format, one.name + std::string(" (not built)"));
    EXPECT_EQ(layer.spec.down.format, layer.spec.gate_up.format);
    std::int64_t bytes = 0, router = 0;
    for (const testing::TestTensor& tensor : written.tensors) {
      if (tensor.name.starts_with("model.layers.0.mlp.")) bytes += tensor.bytes();
      if (tensor.name == "model.layers.0.mlp.gate.weight") router = tensor.bytes();
    }
    EXPECT_EQ(layer.bytes, bytes);
    EXPECT_EQ(layer.bytes_per_token, (bytes - router) / 4 * 2 + router);
    try {
      opened->load(0);
      FAIL() << one.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
      expect_words(error.what(), {"layer 0", one.name, "experts.0.gate_proj", "is not built"});
    }
  }
}

TEST(L18, SixBitFloatsAreToldByTheirWidth) {
  const TempDir dir;
  testing::qwen3_checkpoint([](TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
    out.add(module + ".weight_packed", DType::u8, {rows, cols / 4 * 3});
    out.add(module + ".weight_scale", DType::u8, {rows, cols / 32});
  }, 1, 160, 96).write(dir);
  EXPECT_EQ(Checkpoint::open(dir.str())->layers()[0].spec.down.format, "mxfp6 (not built)");
}

TEST(L18, ARouterInAFormatThatIsNotBuiltIsRefused) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint();
  checkpoint["model.layers.0.mlp.gate.weight"].dtype = DType::i8;
  checkpoint.add("model.layers.0.mlp.gate.weight_scale", DType::f32, {4, 1});
  expect_words(refusal(checkpoint, ErrorCode::not_supported), {"int8", "mlp.gate.weight", "is not built"});
}

TEST(L18, Fp8BlocksThatNoKernelReadsAreRefusedWithTheTensor) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint(testing::write_fp8);
  checkpoint.config["quantization_config"] = {{"weight_block_size", {128, 120}}};
  expect_words(refusal(checkpoint, ErrorCode::not_supported), {"experts.0.gate_proj.weight", "120 columns", "multiple of 16"});
}

TEST(L18, GateAndUpHalvesMustNotShareAScaleBlock) {
  TestCheckpoint granite;
  granite.config = {{"model_type", "granitemoeshared"}, {"hidden_size", 64}, {"intermediate_size", 96}, {"num_local_experts", 4}, {"num_experts_per_tok", 2},
                    {"num_hidden_layers", 1}, {"shared_intermediate_size", 48}, {"quantization_config", {{"weight_block_size", {32, 32}}}}};
  granite.add("model.layers.0.block_sparse_moe.input_linear.weight", DType::bf16, {4, 192, 64});
  granite.add("model.layers.0.block_sparse_moe.output_linear.weight", DType::bf16, {4, 64, 96});
  granite.add("model.layers.0.block_sparse_moe.router.layer.weight", DType::bf16, {4, 64});
  granite.add("model.layers.0.shared_mlp.input_linear.weight", DType::f8_e4m3, {96, 64});
  granite.add("model.layers.0.shared_mlp.input_linear.weight_scale_inv", DType::f32, {3, 2});
  granite.add("model.layers.0.shared_mlp.output_linear.weight", DType::bf16, {64, 48});
  expect_words(refusal(granite, ErrorCode::not_supported), {"shared_mlp.input_linear.weight", "32 rows", "halves of 48 rows"});
  granite.config["quantization_config"]["weight_block_size"] = {16, 32};
  granite["model.layers.0.shared_mlp.input_linear.weight_scale_inv"].shape = {6, 2};
  const TempDir dir;
  granite.write(dir);
  const ExpertView shared = Checkpoint::open(dir.str())->load(0)->shared;
  EXPECT_EQ(shared.up.codes - shared.gate.codes, 48 * 64);
  EXPECT_EQ(shared.up.scales - shared.gate.scales, 3 * 2 * 4);
}

TEST(L18, OneProjectionInTwoFormatsIsRefused) {
  TestCheckpoint checkpoint = testing::qwen3_checkpoint();
  const std::string name = "model.layers.0.mlp.experts.2.up_proj.weight";
  checkpoint[name].dtype = DType::f32;
  expect_words(refusal(checkpoint, ErrorCode::not_supported), {"experts.2.up_proj", "f32", "bf16"});
}

TEST(Layers, PackedAndModeloptSpellingsOfMxfp4) {
  for (const bool packed : {true, false}) {
    TestCheckpoint checkpoint = testing::qwen3_checkpoint([&](TestCheckpoint& out, const std::string& module, std::int64_t rows, std::int64_t cols) {
      out.add(module + (packed ? ".weight_packed" : ".weight"), DType::u8, {rows, cols / 2});
      out.add(module + ".weight_scale", packed ? DType::u8 : DType::f8_e8m0, {rows, cols / 32});
    }, 1, 160, 96);
    const TempDir dir;
    checkpoint.write(dir);
    const auto opened = Checkpoint::open(dir.str());
    EXPECT_EQ(opened->layers()[0].spec.down.format, "mxfp4");
    EXPECT_EQ(opened->load(0)->experts[3].down.scale_row_stride, 3);
  }
}

}  // namespace
}  // namespace motet
