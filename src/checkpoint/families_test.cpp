// SPDX-License-Identifier: Apache-2.0
// Spellings of families that the golden layers do not show: open, what the config says, load.
#include <gtest/gtest.h>

#include "checkpoint/testing.h"
#include "formats/layer_weights.h"
#include "motet/checkpoint.h"

namespace motet {
namespace {

using testing::TempDir;
using testing::TestCheckpoint;

constexpr std::int64_t kHidden = 64, kIntermediate = 48, kExperts = 4;

TestCheckpoint begin(const char* model_type, Json config) {
  TestCheckpoint out;
  out.config = std::move(config);
  out.config["model_type"] = model_type;
  out.config["hidden_size"] = kHidden;
  out.config["num_experts_per_tok"] = 2;
  return out;
}

void add_expert(TestCheckpoint& out, const std::string& module, std::int64_t intermediate, bool gated = true) {
  if (gated) out.add(module + "gate_proj.weight", DType::bf16, {intermediate, kHidden});
  out.add(module + "up_proj.weight", DType::bf16, {intermediate, kHidden});
  out.add(module + "down_proj.weight", DType::bf16, {kHidden, intermediate});
}

struct Loaded {
  LayerSummary layer;
  std::vector<std::string> notes;
  std::shared_ptr<const LayerWeights> weights;
};
Loaded open(const TestCheckpoint& checkpoint, std::int64_t layer) {
  const TempDir dir;
  checkpoint.write(dir);
  const auto opened = Checkpoint::open(dir.str());
  return {opened->layer(layer), opened->notes(), opened->load(layer)};
}

/// Where a row of `second` begins behind `first`, in bytes.
std::int64_t between(const WeightView& first, const WeightView& second) { return second.codes - first.codes; }

TEST(Llama4, PerExpertNamesBesideStacks) {
  TestCheckpoint out = begin("llama4_text", {{"intermediate_size", kIntermediate}, {"num_local_experts", kExperts}, {"num_hidden_layers", 2}, {"interleave_moe_layer_step", 2}});
  const std::string p = "model.layers.1.feed_forward.";
  for (std::int64_t e = 0; e < kExperts; ++e) add_expert(out, p + "experts." + std::to_string(e) + ".", kIntermediate);
  out.add(p + "router.weight", DType::bf16, {kExperts, kHidden});
  add_expert(out, p + "shared_expert.", kIntermediate);
  const Loaded loaded = open(out, 1);
  const LayerSpec& spec = loaded.layer.spec;
  EXPECT_EQ(spec.family, "llama4");
  EXPECT_EQ(spec.gate_up_order, GateUpOrder::separate);
  EXPECT_FALSE(spec.gate_up.transposed);
  EXPECT_EQ(spec.router.weight_site, WeightSite::input);
  EXPECT_EQ(spec.shared.intermediate, kIntermediate);
  EXPECT_EQ(loaded.layer.parameters, (kExperts + 1) * 3 * kHidden * kIntermediate + kExperts * kHidden);
  EXPECT_EQ(loaded.weights->experts[3].down.row_stride, kIntermediate * 2);

  TestCheckpoint stacks = begin("llama4_text", {{"intermediate_size", kIntermediate}, {"num_local_experts", kExperts}, {"num_hidden_layers", 2}, {"interleave_moe_layer_step", 2}});
  stacks.add(p + "experts.gate_up_proj", DType::bf16, {kExperts, kHidden, 2 * kIntermediate});
  stacks.add(p + "experts.down_proj", DType::bf16, {kExperts, kIntermediate, kHidden});
  stacks.add(p + "router.weight", DType::bf16, {kExperts, kHidden});
  add_expert(stacks, p + "shared_expert.", kIntermediate);
  const Loaded stacked = open(stacks, 1);
  EXPECT_EQ(stacked.layer.spec.gate_up_order, GateUpOrder::halves);
  EXPECT_TRUE(stacked.layer.spec.down.transposed);
  EXPECT_EQ(stacked.layer.parameters, loaded.layer.parameters);
  EXPECT_EQ(between(stacked.weights->experts[2].gate, stacked.weights->experts[2].up), kIntermediate * 2);
  EXPECT_EQ(stacked.weights->experts[2].gate.col_stride, 2 * kIntermediate * 2);
}

TEST(NemotronH, StacksWithoutGate) {
  TestCheckpoint out = begin("nemotron_h", {{"moe_intermediate_size", kIntermediate}, {"n_routed_experts", kExperts}, {"hybrid_override_pattern", "M*E-"}, {"n_group", 1},
                                            {"topk_group", 1}, {"routed_scaling_factor", 2.5}, {"moe_shared_expert_intermediate_size", 80}, {"mlp_hidden_act", "relu2"}});
  const std::string p = "backbone.layers.2.mixer.";
  out.add(p + "experts.up_proj", DType::bf16, {kExperts, kIntermediate, kHidden});
  out.add(p + "experts.down_proj", DType::bf16, {kExperts, kHidden, kIntermediate});
  out.add(p + "gate.weight", DType::f32, {kExperts, kHidden});
  out.add(p + "gate.e_score_correction_bias", DType::f32, {kExperts});
  add_expert(out, p + "shared_experts.", 80, false);
  const Loaded loaded = open(out, 2);
  const LayerSpec& spec = loaded.layer.spec;
  EXPECT_FALSE(spec.activation.gated);
  EXPECT_EQ(spec.activation.kind, ActivationKind::relu2);
  EXPECT_EQ(spec.shared.intermediate, 80);
  EXPECT_EQ(spec.router.scale, 2.5);
  EXPECT_EQ(spec.router.weight_dtype, DType::f32);
  EXPECT_EQ(loaded.layer.parameters, kExperts * 2 * kHidden * kIntermediate + 2 * kHidden * 80 + kExperts * kHidden);
  EXPECT_EQ(loaded.weights->experts[0].gate.codes, nullptr);
  EXPECT_EQ(between(loaded.weights->experts[0].up, loaded.weights->experts[3].up), 3 * kIntermediate * kHidden * 2);
}

TEST(GraniteMoe, HybridHasFusedSharedExpert) {
  TestCheckpoint out = begin("granitemoehybrid", {{"intermediate_size", kIntermediate}, {"num_local_experts", kExperts}, {"num_hidden_layers", 1}, {"shared_intermediate_size", 80}});
  const std::string p = "model.layers.0.";
  out.add(p + "block_sparse_moe.input_linear.weight", DType::bf16, {kExperts, 2 * kIntermediate, kHidden});
  out.add(p + "block_sparse_moe.output_linear.weight", DType::bf16, {kExperts, kHidden, kIntermediate});
  out.add(p + "block_sparse_moe.router.layer.weight", DType::bf16, {kExperts, kHidden});
  out.add(p + "shared_mlp.input_linear.weight", DType::bf16, {160, kHidden});
  out.add(p + "shared_mlp.output_linear.weight", DType::bf16, {kHidden, 80});
  out.add(p + "mamba.in_proj.weight", DType::bf16, {8, kHidden});
  const Loaded loaded = open(out, 0);
  const LayerSpec& spec = loaded.layer.spec;
  EXPECT_EQ(spec.family, "granitemoe");
  EXPECT_EQ(spec.gate_up_order, GateUpOrder::halves);
  EXPECT_EQ(spec.shared.gate_up_order, GateUpOrder::halves);
  EXPECT_EQ(spec.router.normalize, RouterNormalize::softmax);
  EXPECT_EQ(loaded.layer.parameters_per_token, 2 * 3 * kHidden * kIntermediate + 3 * kHidden * 80 + kExperts * kHidden);
  EXPECT_EQ(between(loaded.weights->shared.gate, loaded.weights->shared.up), 80 * kHidden * 2);
  EXPECT_EQ(between(loaded.weights->experts[1].gate, loaded.weights->experts[1].up), kIntermediate * kHidden * 2);
}

TEST(DeepseekV3, KimiAndGlmSayTheSameInTheirConfigs) {
  for (const char* const type : {"kimi_k2", "glm4_moe"}) {
    TestCheckpoint out = begin(type, {{"moe_intermediate_size", kIntermediate}, {"n_routed_experts", kExperts}, {"num_hidden_layers", 2}, {"first_k_dense_replace", 1}, {"n_group", 1},
                                      {"topk_group", 1}, {"routed_scaling_factor", 2.827}, {"n_shared_experts", 2}});
    if (std::string(type) == "kimi_k2") out.config["scoring_func"] = "sigmoid", out.config["topk_method"] = "noaux_tc";
    const std::string p = "model.layers.1.mlp.";
    for (std::int64_t e = 0; e < kExperts; ++e) add_expert(out, p + "experts." + std::to_string(e) + ".", kIntermediate);
    out.add(p + "gate.weight", DType::bf16, {kExperts, kHidden});
    out.add(p + "gate.e_score_correction_bias", DType::f32, {kExperts});
    add_expert(out, p + "shared_experts.", 2 * kIntermediate);
    out.add("model.layers.0.mlp.gate_proj.weight", DType::bf16, {128, kHidden});      // dense
    add_expert(out, "model.layers.2.mlp.experts.0.", kIntermediate);                  // draft layer behind the trunk
    const Loaded loaded = open(out, 1);
    const LayerSpec& spec = loaded.layer.spec;
    EXPECT_EQ(spec.family, "deepseek_v3") << type;
    EXPECT_EQ(spec.shared.intermediate, 2 * kIntermediate);
    EXPECT_TRUE(spec.router.selection_bias);
    EXPECT_EQ(spec.router.score, RouterScore::sigmoid);
    EXPECT_EQ(spec.router.scale, 2.827);
    EXPECT_EQ(loaded.layer.parameters, (kExperts + 2) * 3 * kHidden * kIntermediate + kExperts * kHidden);
    EXPECT_EQ(loaded.weights->shared.up.rows, 2 * kIntermediate);
    EXPECT_EQ(loaded.weights->selection_bias.count, kExperts);
    ASSERT_EQ(loaded.notes.size(), 1u);
    EXPECT_NE(loaded.notes[0].find("layer 2: 3 tensors behind the trunk"), std::string::npos) << loaded.notes[0];
  }
}

}  // namespace
}  // namespace motet
