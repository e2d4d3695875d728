// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>

#include "base/json.h"
#include "plan/fake_catalog.h"

namespace motet {
namespace {

std::vector<LayerSpec> layers() { return {fake::gpt_oss(), fake::nemotron(0), fake::nemotron(1024)}; }

TEST(L2, TensorsOfTheCallerHaveTrueWidthsOnEveryBackend) {
  for (const LayerSpec& spec : layers())
    for (const char* backend : {"narrow", "wide", "aligned"}) {
      const Plan plan = fake::plan(spec, fake::with_backend(backend, 5));
      int seen = 0;
      for (const Stage& stage : plan.stages)
        for (const auto* tensors : {&stage.in, &stage.out})
          for (const TensorType& tensor : *tensors)
            if (tensor.name == "hidden_states" || tensor.name == "output") {
              ++seen;
              EXPECT_EQ(tensor.stored, (std::vector<std::int64_t>{5, spec.hidden}));
            }
      EXPECT_GE(seen, 3);
    }
}

TEST(L3, OneShapeForEveryBackendAndNumberOfTokens) {
  for (const LayerSpec& spec : layers())
    for (const std::int64_t tokens : {0, 1, 2, 16, 127, 8192}) {
      const OutputType narrow = fake::plan(spec, fake::with_backend("narrow")).output(tokens);
      EXPECT_EQ(
          narrow,
          (OutputType{.dtype = DType::bf16, .rows = tokens, .cols = spec.hidden, .row_stride = spec.hidden, .col_stride = 1}));
      for (const char* backend : {"wide", "aligned"})
        EXPECT_EQ(fake::plan(spec, fake::with_backend(backend)).output(tokens), narrow) << backend;
    }
}

TEST(L3, TheTailsOutputIsTheShapeFunctions) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    Deployment deployment = fake::with_backend("wide", 9);
    deployment.input = dtype;
    const Plan plan = fake::plan(fake::nemotron(0), deployment);
    const TensorType& output = plan.stages.back().out.back();
    const OutputType shape = plan.output(9);
    EXPECT_EQ(output.name, "output");
    EXPECT_EQ(output.dtype, shape.dtype);
    EXPECT_EQ(shape.dtype, dtype);
    EXPECT_EQ(output.valid, (std::vector<std::int64_t>{shape.rows, shape.cols}));
  }
}

TEST(L9, ZeroTokensKeepTheirExtents) {
  const Plan plan = fake::plan(fake::gpt_oss(), fake::with_backend("narrow", 1));
  const OutputType empty = plan.output(0);
  EXPECT_EQ(empty.rows, 0);
  EXPECT_EQ(empty.cols, 2880);
  EXPECT_EQ(empty.row_stride, 2880);
}

TEST(L9, ARankWithoutExpertsHasTheSamePlan) {
  LayerSpec spec = fake::gpt_oss();
  spec.experts = 4;
  Deployment deployment;
  deployment.ep = 6;
  const Plan plan = fake::plan(spec, deployment);
  EXPECT_EQ(plan.ranks[5].expert_count, 0);
  EXPECT_TRUE(
      std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& stage) { return stage.id == StageId::dispatch; }));
}

TEST(Plan, StagesAreInOrderAndOnlyThoseOfTheLayer) {
  const auto ids = [](const Plan& plan) {
    std::vector<StageId> found;
    for (const Stage& stage : plan.stages) found.push_back(stage.id);
    return found;
  };
  EXPECT_EQ(ids(fake::plan(fake::gpt_oss())), (std::vector<StageId>{StageId::input, StageId::route, StageId::map, StageId::prepare,
                                                                    StageId::experts, StageId::finalize, StageId::tail}));
  Deployment deployment = fake::with_backend("wide");
  deployment.ep = 2;
  EXPECT_EQ(ids(fake::plan(fake::nemotron(1024), deployment)),
            (std::vector<StageId>{StageId::input, StageId::shared, StageId::route, StageId::latent_in, StageId::dispatch,
                                  StageId::experts, StageId::finalize, StageId::combine, StageId::tail}));
  deployment.placement = TokenPlacement::replicated;
  EXPECT_EQ(ids(fake::plan(fake::nemotron(1024), deployment)),
            (std::vector<StageId>{StageId::input, StageId::shared, StageId::route, StageId::map, StageId::latent_in,
                                  StageId::prepare, StageId::experts, StageId::finalize, StageId::tail}));
}

TEST(Plan, ATensorHasOneTypeInAllStages) {
  for (const LayerSpec& spec : layers()) {
    const Plan plan = fake::plan(spec, fake::with_backend("wide", 3));
    std::vector<TensorType> known;
    for (const Stage& stage : plan.stages)
      for (const auto* tensors : {&stage.in, &stage.out})
        for (const TensorType& tensor : *tensors) {
          for (const TensorType& other : known) EXPECT_TRUE(other.name != tensor.name || other == tensor) << tensor.name;
          known.push_back(tensor);
        }
  }
}

TEST(L10, PlanningTwiceGivesTheSamePlanTextAndJson) {
  for (const LayerSpec& spec : layers()) {
    const Plan a = fake::plan(spec), b = fake::plan(spec);
    EXPECT_EQ(a, b);
    EXPECT_EQ(a.to_json(), b.to_json());
    EXPECT_EQ(a.to_text(), b.to_text());
    EXPECT_EQ(a.fingerprint.size(), 32u);
    EXPECT_EQ(a.fingerprint, b.fingerprint);
  }
  EXPECT_NE(fake::plan(fake::gpt_oss()), fake::plan(fake::nemotron(0)));
}

TEST(L20, TheJsonNamesEveryValue) {
  Deployment deployment;
  deployment.tp = 4;
  const Plan plan = fake::plan(fake::gpt_oss(), deployment);
  const Json json = parse_json(plan.to_json(), "plan");
  EXPECT_EQ(json["schema"], "motet.plan/1");
  EXPECT_EQ(json["spec"]["gate_up"]["format"], "mxfp4");
  EXPECT_EQ(json["spec"]["activation"]["kind"], "swiglu_oai");
  EXPECT_EQ(json["ranks"][3]["intermediate_valid"], 704);
  EXPECT_EQ(json["memory"]["workspace"], plan.workspace.bytes);
  EXPECT_EQ(json["workspace"]["areas"].size(), plan.workspace.areas.size());
  EXPECT_EQ(json["fingerprint"], plan.fingerprint);
  EXPECT_EQ(json["widths"][0]["axis"], "hidden");
  for (const Json& choice : json["choices"]) EXPECT_EQ(choice.contains("refusal"), choice["verdict"] == "refused");
}

TEST(Plan, NamesThatAreNotUtf8DoNotBreakTheJson) {
  LayerSpec spec = fake::gpt_oss();
  spec.family = "gpt\xff";
  EXPECT_NO_THROW((void)parse_json(fake::plan(spec).to_json(), "plan"));
}

TEST(Plan, TheTextFitsAHundredColumns) {
  for (const LayerSpec& spec : layers())
    for (const std::int64_t tp : {1, 4}) {
      Deployment deployment = fake::with_backend("wide", 8192);
      deployment.tp = tp;
      std::istringstream text(fake::plan(spec, deployment).to_text());
      for (std::string line; std::getline(text, line);) {
        EXPECT_LE(line.size(), 100u) << line;
        EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
      }
    }
}

TEST(Plan, TheTextHasEverySection) {
  const std::string text = fake::plan(fake::gpt_oss()).to_text();
  for (const char* title : {"\nLayer\n", "\nWidths\n", "\nStages\n", "\nTail\n", "\nRecipe\n", "\nWorkspace\n",
                            "\nMemory of one rank\n", "\nRanks\n", "\nChoices\n", "\nFingerprint\n"})
    EXPECT_NE(text.find(title), std::string::npos) << title;
}

TEST(Plan, NamesAreTheEnumeratorsAsWritten) {
  EXPECT_EQ(name_of(Axis::down_in), "down_in");
  EXPECT_EQ(name_of(StageId::latent_in), "latent_in");
  EXPECT_EQ(name_of(TailOp::add_zero_experts), "add_zero_experts");
  EXPECT_EQ(name_of(AreaId::shared_out), "shared_out");
  EXPECT_EQ(name_of(Layout::swizzled_128x4), "swizzled_128x4");
  EXPECT_EQ(name_of(ActivationKind::relu2), "relu2");
  EXPECT_EQ(name_of(static_cast<Verdict>(77)), "?");
}

}  // namespace
}  // namespace motet
