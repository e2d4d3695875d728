// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/byte_ranges.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/testing.h"

namespace motet {
namespace {

using testing::TempDir;
using testing::TestCheckpoint;

/// A plan of this layer whose ranks are given.
Plan plan_of(const Checkpoint& checkpoint, std::vector<RankSlice> ranks) {
  Plan plan;
  plan.spec = checkpoint.layers()[0].spec;
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i].rank = static_cast<std::int64_t>(i);
  plan.ranks = std::move(ranks);
  return plan;
}

RankSlice slice(std::int64_t expert_begin, std::int64_t expert_count, std::int64_t begin, std::int64_t count) {
  RankSlice out;
  out.expert_begin = expert_begin;
  out.expert_count = expert_count;
  out.intermediate_begin = begin;
  out.intermediate_valid = out.intermediate_stored = count;
  return out;
}

const ByteRange& range_of(const std::vector<ByteRange>& ranges, const std::string& tensor) {
  for (const ByteRange& range : ranges) if (range.tensor.ends_with(tensor)) return range;
  throw std::runtime_error("no range of " + tensor);
}

/// How often each byte of each tensor is read.
std::map<std::string, std::vector<int>> coverage(const Checkpoint& checkpoint, const Plan& plan) {
  std::map<std::string, std::vector<int>> out;
  std::map<std::string, std::int64_t> start;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    out[tensor.name].resize(static_cast<std::size_t>(tensor.bytes));
    start[tensor.name] = tensor.offset;
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const ByteRange& range : checkpoint.byte_ranges(plan, static_cast<std::int64_t>(rank))) {
      for (std::int64_t i = 0; i < range.count; ++i) {
        for (std::int64_t b = 0; b < range.bytes; ++b) ++out[range.tensor].at(static_cast<std::size_t>(range.offset - start[range.tensor] + i * range.stride + b));
      }
    }
  }
  return out;
}

TEST(ByteRanges, GptOss20bTp4InUnitsOf32) {
  const TempDir dir;
  const TestCheckpoint written = testing::gpt_oss_checkpoint(1, 2880, 2880, 32);
  testing::write_file(dir / "config.json", written.config.dump());
  testing::write_sparse(dir / "model.safetensors", written.tensors);
  const auto checkpoint = Checkpoint::open(dir.str());
  std::vector<RankSlice> ranks = {slice(0, 32, 0, 736), slice(0, 32, 736, 736), slice(0, 32, 1472, 704), slice(0, 32, 2176, 704)};
  for (std::size_t i = 1; i < 4; ++i) ranks[i].down_bias = false;
  const Plan plan = plan_of(*checkpoint, ranks);
  const auto ranges = checkpoint->byte_ranges(plan, 1);
  const std::int64_t row = 90 * 16;
  const ByteRange& gate_up = range_of(ranges, "gate_up_proj_blocks");      // pairs interleave: rows 1472 .. 2943 of each expert
  const auto start = [&](const std::string& name) {
    for (const TensorInfo& tensor : checkpoint->tensors()) if (tensor.name.ends_with(name)) return tensor.offset;
    return std::int64_t{-1};
  };
  EXPECT_EQ(gate_up.offset, start("gate_up_proj_blocks") + 1472 * row);
  EXPECT_EQ(gate_up.bytes, 1472 * row);
  EXPECT_EQ(gate_up.count, 32);
  EXPECT_EQ(gate_up.stride, 5760 * row);
  EXPECT_EQ(gate_up.what, "gate_up rows 1472..2943 of expert 0..31");
  const ByteRange& gate_up_scales = range_of(ranges, "gate_up_proj_scales");
  EXPECT_EQ(gate_up_scales.bytes, 1472 * 90);
  EXPECT_EQ(gate_up_scales.count, 32);
  const ByteRange& down = range_of(ranges, "down_proj_blocks");            // columns 736 .. 1471 of every row of every expert
  EXPECT_EQ(down.offset, start("down_proj_blocks") + 736 / 2);
  EXPECT_EQ(down.bytes, 368);
  EXPECT_EQ(down.count, 32 * 2880);
  EXPECT_EQ(down.stride, row);
  const ByteRange& down_scales = range_of(ranges, "down_proj_scales");
  EXPECT_EQ(down_scales.offset, start("down_proj_scales") + 23);
  EXPECT_EQ(down_scales.bytes, 23);
  EXPECT_EQ(down_scales.count, 32 * 2880);
  EXPECT_EQ(down_scales.stride, 90);
  EXPECT_EQ(range_of(ranges, "gate_up_proj_bias").bytes, 1472 * 2);
  EXPECT_EQ(range_of(ranges, "router.weight").bytes, 32 * 2880 * 2);
  EXPECT_THROW(range_of(ranges, "down_proj_bias"), std::runtime_error);
  EXPECT_EQ(range_of(checkpoint->byte_ranges(plan, 0), "down_proj_bias").bytes, 32 * 2880 * 2);
}

/// Ranks of tp x ep read each expert byte once; what is read whole, once per rank.
void expect_partition(const TestCheckpoint& written, std::vector<RankSlice> ranks) {
  const TempDir dir;
  written.write(dir);
  const auto checkpoint = Checkpoint::open(dir.str());
  const Plan plan = plan_of(*checkpoint, std::move(ranks));
  const auto read = coverage(*checkpoint, plan);
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    const bool unread = tensor.role.empty() || tensor.role.ends_with("input_scale");
    const bool whole = tensor.role.starts_with("router") || tensor.role.ends_with("tensor_scale") || tensor.role.starts_with("shared_gate") || tensor.role.starts_with("selection");
    if (whole) continue;
    for (const int times : read.at(tensor.name)) ASSERT_EQ(times, unread ? 0 : 1) << tensor.name << " " << tensor.role;
  }
}

TEST(ByteRanges, RanksReadEachExpertByteOnce) {
  const std::vector<RankSlice> stacked = {slice(0, 3, 0, 32), slice(0, 3, 32, 64), slice(3, 1, 0, 32), slice(3, 1, 32, 64)};
  TestCheckpoint oss = testing::gpt_oss_checkpoint();      // I 96
  std::vector<RankSlice> one_bias = stacked;
  one_bias[1].down_bias = one_bias[3].down_bias = false;
  expect_partition(oss, one_bias);
  // BF16 gpt-oss: transposed and interleaved.
  TestCheckpoint plain = oss;
  for (const char* const name : {"gate_up_proj", "down_proj"}) {
    plain.remove("model.layers.0.mlp.experts." + std::string(name) + "_blocks");
    plain.remove("model.layers.0.mlp.experts." + std::string(name) + "_scales");
  }
  plain.add("model.layers.0.mlp.experts.gate_up_proj", DType::bf16, {4, 64, 192});
  plain.add("model.layers.0.mlp.experts.down_proj", DType::bf16, {4, 96, 64});
  expect_partition(plain, one_bias);
  // Halves, stacked; and a fused shared expert.
  TestCheckpoint granite;
  granite.config = {{"model_type", "granitemoeshared"}, {"hidden_size", 64}, {"intermediate_size", 96}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"num_hidden_layers", 1}, {"shared_intermediate_size", 40}};
  granite.add("model.layers.0.block_sparse_moe.input_linear.weight", DType::bf16, {4, 192, 64});
  granite.add("model.layers.0.block_sparse_moe.output_linear.weight", DType::bf16, {4, 64, 96});
  granite.add("model.layers.0.block_sparse_moe.router.layer.weight", DType::bf16, {4, 64});
  granite.add("model.layers.0.shared_mlp.input_linear.weight", DType::bf16, {80, 64});
  granite.add("model.layers.0.shared_mlp.output_linear.weight", DType::bf16, {64, 40});
  std::vector<RankSlice> shared = stacked;
  for (std::size_t i = 0; i < 4; ++i) { shared[i].shared_begin = static_cast<std::int64_t>(i) * 10; shared[i].shared_valid = 10; }
  expect_partition(granite, shared);
  // Per expert, with block scales.
  expect_partition(testing::qwen3_checkpoint(testing::write_nvfp4), {slice(0, 2, 0, 64), slice(0, 2, 64, 80), slice(2, 2, 0, 144)});
  TestCheckpoint fp8 = testing::qwen3_checkpoint(testing::write_fp8, 1, 160, 256);
  fp8.config["quantization_config"] = {{"weight_block_size", {128, 128}}};
  expect_partition(fp8, {slice(0, 4, 0, 128), slice(0, 4, 128, 128)});
}

TEST(ByteRanges, AWholeSharedExpertKeepsItsBiasOnEveryRank) {
  TestCheckpoint nemotron;
  nemotron.config = {{"model_type", "nemotron_h"}, {"hidden_size", 64}, {"moe_intermediate_size", 96}, {"n_routed_experts", 4}, {"num_experts_per_tok", 2}, {"hybrid_override_pattern", "E"},
                     {"n_group", 1}, {"topk_group", 1}, {"routed_scaling_factor", 1}, {"moe_shared_expert_intermediate_size", 32}, {"mlp_bias", true}};
  const std::string p = "backbone.layers.0.mixer.";
  nemotron.add(p + "gate.weight", DType::bf16, {4, 64});
  nemotron.add(p + "gate.e_score_correction_bias", DType::f32, {4});
  for (const std::string& body : {std::string("experts.0."), std::string("experts.1."), std::string("experts.2."), std::string("experts.3."), std::string("shared_experts.")}) {
    const std::int64_t intermediate = body[0] == 's' ? 32 : 96;
    nemotron.add(p + body + "up_proj.weight", DType::bf16, {intermediate, 64});
    nemotron.add(p + body + "up_proj.bias", DType::bf16, {intermediate});
    nemotron.add(p + body + "down_proj.weight", DType::bf16, {64, intermediate});
    nemotron.add(p + body + "down_proj.bias", DType::bf16, {64});
  }
  const TempDir dir;
  nemotron.write(dir);
  const auto checkpoint = Checkpoint::open(dir.str());
  std::vector<RankSlice> ranks = {slice(0, 4, 0, 48), slice(0, 4, 48, 48)};
  ranks[1].down_bias = false;
  for (RankSlice& rank : ranks) rank.shared_valid = 32;          // whole on both
  const auto whole = checkpoint->byte_ranges(plan_of(*checkpoint, ranks), 1);
  EXPECT_EQ(range_of(whole, "shared_experts.down_proj.bias").bytes, 64 * 2);
  EXPECT_THROW(range_of(whole, "experts.3.down_proj.bias"), std::runtime_error);
  ranks[0].shared_valid = ranks[1].shared_valid = ranks[1].shared_begin = 16;
  ranks[1].shared_bias = false;
  EXPECT_THROW(range_of(checkpoint->byte_ranges(plan_of(*checkpoint, ranks), 1), "shared_experts.down_proj.bias"), std::runtime_error);
}

TEST(ByteRanges, ARankOfNothingReadsTheRouterOnly) {
  const TempDir dir;
  testing::qwen3_checkpoint().write(dir);
  const auto checkpoint = Checkpoint::open(dir.str());
  const auto ranges = checkpoint->byte_ranges(plan_of(*checkpoint, {slice(0, 4, 0, 144), slice(4, 0, 0, 144)}), 1);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].what, "router");
}

TEST(ByteRanges, RefusesAnotherLayersPlanAndUnknownRanks) {
  const TempDir dir;
  testing::qwen3_checkpoint().write(dir);
  const auto checkpoint = Checkpoint::open(dir.str());
  Plan plan = plan_of(*checkpoint, {slice(0, 4, 0, 144)});
  EXPECT_THROW(checkpoint->byte_ranges(plan, 1), Error);
  plan.spec.hidden += 1;
  EXPECT_THROW(checkpoint->byte_ranges(plan, 0), Error);
}

}  // namespace
}  // namespace motet
