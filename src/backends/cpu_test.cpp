// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/testing.h"
#include "base/thread_pool.h"

namespace motet::testing {
namespace {

const Rows kRows{{0, 1, 3, 4, 9, 40}};  // none, one, around the token counts of `few`, more than a tile's vector

Wishes wishes_of(Arithmetic arithmetic, bool invariant = false) {
  Wishes out;
  out.arithmetic = arithmetic;
  out.invariant = invariant;
  return out;
}

/// Runs `spec` on every target and arithmetic against the reference; every run must be within the bound of what its plan took.
void expect_within_bounds(const LayerSpec& spec, std::uint64_t seed) {
  const auto weights = make_synthetic_weights(spec, seed);
  ThreadPool pool(2);
  const std::vector<float> x = inputs(kRows.total(), spec.dispatch_width(), seed);
  const std::vector<float> truth = runner(spec, weights, "reference").experts(x, kRows, pool);
  ASSERT_FALSE(usable_targets().empty());
  for (const std::string& target : usable_targets()) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::bf16, Arithmetic::fast}) {
      for (const Residence residence : {Residence::mapped, Residence::packed}) {
        Wishes wishes = wishes_of(arithmetic);
        wishes.residence = residence;
        Runner run = runner(spec, weights, "cpu", target, wishes);
        const double error = relative_error(run.experts(x, kRows, pool), truth);
        EXPECT_LT(error, bound(run.plan())) << spec.gate_up.format << " on " << target << ", " << name_of(residence) << ", "
                                            << run.plan().recipe.arithmetic << ", hidden " << spec.hidden << ", intermediate "
                                            << spec.intermediate << ", order " << static_cast<int>(spec.gate_up_order) << ", body "
                                            << static_cast<int>(spec.activation.kind);
        EXPECT_LT(error, run.plan().recipe.error_bound / (run.plan().recipe.arithmetic == "f32" ? 4 : 1));
      }
    }
  }
}

bool packed(const std::string& format) { return find_format(format)->facts.values_per_block > 1; }

class Targets : public ::testing::TestWithParam<TargetState> {};

TEST_P(Targets, RunWhenForced) {
  if (!GetParam().missing.empty()) GTEST_SKIP() << "this processor lacks " << GetParam().missing;
  const LayerSpec spec = layer_spec("bf16");
  Runner run = runner(spec, make_synthetic_weights(spec, 10), "cpu", GetParam().name);
  EXPECT_EQ(run.plan().target, GetParam().name);
  ThreadPool pool(1);
  EXPECT_EQ(run.experts(inputs(2, spec.hidden), {{2, 0, 0, 0, 0, 0}}, pool).size(), static_cast<std::size_t>(2 * spec.hidden));
}
INSTANTIATE_TEST_SUITE_P(All, Targets, ::testing::ValuesIn(targets()), [](const auto& each) { return each.param.name; });

class Formats : public ::testing::TestWithParam<std::string> {};

TEST_P(Formats, MatchTheReferenceInEveryLayout) {
  for (const GateUpOrder order : {GateUpOrder::separate, GateUpOrder::halves, GateUpOrder::interleaved}) {
    for (const bool transposed : {false, true}) {
      if (transposed && packed(GetParam())) continue;  // no such layout
      LayerSpec spec = layer_spec(GetParam());
      spec.gate_up_order = order;
      spec.gate_up = projection(GetParam(), transposed, true);
      spec.down = projection(GetParam(), transposed, true);
      expect_within_bounds(spec, 11);
    }
  }
}

TEST_P(Formats, MatchTheReferenceInEveryBody) {
  for (const ActivationKind kind :
       {ActivationKind::silu, ActivationKind::gelu_tanh, ActivationKind::swiglu_oai, ActivationKind::swiglu_clamped,
        ActivationKind::swiglu_step, ActivationKind::situ, ActivationKind::relu2}) {
    LayerSpec spec = layer_spec(GetParam());
    spec.activation = activation(kind);
    spec.gate_up.bias = spec.down.bias = true;
    expect_within_bounds(spec, 12);
  }
}

TEST_P(Formats, MatchTheReferenceOnShapesThatHurt) {
  const struct {
    std::int64_t hidden, intermediate;
  } shapes[] = {{288, 704}, {96, 1856}, {288, 720}, {168, 88}, {168, 40}, {97, 33}, {1, 1}};
  const std::int64_t block = find_format(GetParam())->facts.values_per_block;
  for (const auto& shape : shapes) {
    LayerSpec spec = layer_spec(GetParam());
    spec.hidden = shape.hidden;
    spec.intermediate = shape.intermediate;
    if (spec.hidden % block != 0 || spec.intermediate % block != 0) continue;  // codes come in whole blocks
    expect_within_bounds(spec, 13);
  }
}

TEST_P(Formats, MatchTheReferenceAroundTheRoutedExperts) {
  LayerSpec spec = layer_spec(GetParam());
  spec.latent = 160;
  spec.latent_in = spec.latent_out = projection(GetParam());
  spec.shared = {.intermediate = 192,
                 .gate = false,
                 .activation = activation(ActivationKind::silu),
                 .gate_up_order = GateUpOrder::halves,
                 .gate_up = projection(GetParam()),
                 .down = projection(GetParam())};
  const auto weights = make_synthetic_weights(spec, 14);
  Runner reference = runner(spec, weights, "reference");
  ThreadPool pool(2);
  const std::vector<float> x = inputs(7, spec.hidden), latent = inputs(7, spec.latent);
  for (const std::string& target : usable_targets()) {
    Runner run = runner(spec, weights, "cpu", target);
    EXPECT_LT(relative_error(run.shared(x, 7, pool), reference.shared(x, 7, pool)), bound(run.plan())) << target;
    EXPECT_LT(relative_error(run.latent_in(x, 7, pool), reference.latent_in(x, 7, pool)),
              f32_bound(spec.hidden) + encoding_bound(run.plan()))
        << target;
    EXPECT_LT(relative_error(run.latent_out(latent, 7, pool), reference.latent_out(latent, 7, pool)),
              f32_bound(spec.latent) + encoding_bound(run.plan()))
        << target;
  }
}

TEST_P(Formats, FailTheBoundWhenWrong) {
  LayerSpec spec = layer_spec(GetParam());
  spec.hidden = 96, spec.intermediate = 32;
  const auto weights = make_synthetic_weights(spec, 15);
  ThreadPool pool(1);
  const Rows rows{{0, 0, 9, 9, 0, 0}};
  std::vector<float> x = inputs(rows.total(), spec.hidden);
  const std::vector<float> truth = runner(spec, weights, "reference").experts(x, rows, pool);
  Runner right = runner(spec, weights, "cpu");
  const double tolerance = bound(right.plan());
  ASSERT_LT(relative_error(right.experts(x, rows, pool), truth), tolerance);

  std::vector<float> skipped = right.experts(x, rows, pool);
  std::fill_n(skipped.begin(), spec.hidden, 0.0f);
  EXPECT_GT(relative_error(skipped, truth), tolerance) << "a skipped token";

  std::swap(weights->experts[2], weights->experts[3]);
  EXPECT_GT(relative_error(runner(spec, weights, "cpu").experts(x, rows, pool), truth), tolerance) << "swapped experts";
  std::swap(weights->experts[2], weights->experts[3]);

  // The sign of one weight: the largest, so that the change is not itself a rounding error.
  const WeightView& down = weights->experts[2].down;
  std::vector<double> row(static_cast<std::size_t>(down.cols));
  std::int64_t n = 0, largest = 0;
  double size = 0;
  for (std::int64_t i = 0; i < down.rows; ++i) {
    find_format(GetParam())->decode(down, i, 0, down.cols, row.data());
    for (std::int64_t k = 0; k < down.cols; ++k) {
      if (std::abs(row[static_cast<std::size_t>(k)]) > size) size = std::abs(row[static_cast<std::size_t>(k)]), n = i, largest = k;
    }
  }
  const std::int64_t bytes = down.col_stride;  // per element; 0 = two in a byte
  const std::int64_t at = n * down.row_stride + (bytes == 0 ? largest / 2 : largest * bytes + bytes - 1);
  const auto flip = static_cast<std::byte>(bytes == 0 && largest % 2 == 0 ? 0x08 : 0x80);
  const_cast<std::byte&>(down.codes[at]) ^= flip;
  EXPECT_GT(relative_error(runner(spec, weights, "cpu").experts(x, rows, pool), truth), tolerance) << "a flipped code";
  const_cast<std::byte&>(down.codes[at]) ^= flip;

  if (down.scales == nullptr) return;
  const std::int64_t scale_bytes = bits_of(down.scale_dtype) / 8;
  weights->experts[2].down.scales += down.rows > down.block_rows ? down.scale_row_stride : 0;
  if (down.rows <= down.block_rows)
    std::swap_ranges(const_cast<std::byte*>(down.scales), const_cast<std::byte*>(down.scales) + scale_bytes,
                     const_cast<std::byte*>(weights->experts[3].down.scales));
  EXPECT_GT(relative_error(runner(spec, weights, "cpu").experts(x, rows, pool), truth), tolerance) << "scales of another block";
}

std::vector<std::string> format_names() {
  std::vector<std::string> out;
  for (const Format* format : all_formats()) out.emplace_back(format->facts.name);
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, Formats, ::testing::ValuesIn(format_names()), [](const auto& each) { return each.param; });

TEST(L15, BitsAreEqualForAnyThreadsAndRuns) {
  for (const std::string& format : format_names()) {
    LayerSpec spec = layer_spec(format);
    spec.hidden = 576, spec.intermediate = 704;
    const auto weights = make_synthetic_weights(spec, 16);
    const std::vector<float> x = inputs(kRows.total(), spec.hidden), tokens = inputs(40, spec.hidden);
    for (const std::string& target : usable_targets()) {
      Runner run = runner(spec, weights, "cpu", target);
      ThreadPool one(1);
      const std::vector<float> truth = run.experts(x, kRows, one), logits = run.router(tokens, 40, one);
      for (const int threads : {2, 3, 2}) {
        ThreadPool pool(threads);
        ASSERT_EQ(run.experts(x, kRows, pool), truth) << format << " on " << target << ", threads " << threads;
        ASSERT_EQ(run.router(tokens, 40, pool), logits) << format << " on " << target << ", threads " << threads;
      }
    }
  }
}

std::string sentence_about(const Plan& plan, const std::string& role) {
  for (const std::string& sentence : plan.recipe.sum_order)
    if (sentence.starts_with(role + " (")) return sentence;
  return "";
}
bool says(const std::string& sentence, const std::string& words) { return sentence.find(words) != std::string::npos; }
/// Most tokens that run `few` by a projection's sentence; 0 = always `many`.
std::int64_t few_limit(const std::string& sentence) {
  const std::string words = "for at most ";
  const std::size_t at = sentence.find(words);
  EXPECT_NE(at == std::string::npos, !says(sentence, "whatever the number of tokens")) << sentence;
  return at == std::string::npos ? 0 : std::stoll(sentence.substr(at + words.size()));
}

TEST(L15, TheRecipeNamesTheOrderOfEachProjectionByItsOwnFormatAndLayout) {
  LayerSpec spec = layer_spec("bf16");
  spec.gate_up = projection("bf16", true);
  spec.down = projection("fp8_block");
  const Plan plan = plan_of(spec, "cpu");
  EXPECT_TRUE(says(sentence_about(plan, "gate_up"), "(bf16, transposed): fp32 in the order of `many` ("))
      << sentence_about(plan, "gate_up");
  EXPECT_EQ(few_limit(sentence_about(plan, "gate_up")), 0);
  const KernelSet* down = find_kernels("fp8_block", plan.target, KernelArithmetic::f32);
  EXPECT_EQ(few_limit(sentence_about(plan, "down")), down->max_few) << sentence_about(plan, "down");
  EXPECT_EQ(sentence_about(plan, "latent_in"), "");
  EXPECT_FALSE(says(sentence_about(plan, "down"), "folded"));
  for (const std::string& target : usable_targets()) {
    const std::string sentence = sentence_about(plan_of(layer_spec("mxfp4"), "cpu", target), "down");
    const KernelSet* many = nullptr;
    for (const KernelArithmetic arithmetic : kAllArithmetics)
      if (says(sentence, "`many` (" + std::string(name_of(arithmetic)) + ")"))
        many = find_kernels("mxfp4", target, arithmetic);
    ASSERT_NE(many, nullptr) << sentence;
    EXPECT_EQ(says(sentence, "cannot be folded exactly"), many->folds) << target << ": " << sentence;
  }
  const Plan invariant = plan_of(spec, "cpu", "", wishes_of(Arithmetic::bf16, true));
  EXPECT_EQ(few_limit(sentence_about(invariant, "down")), 0) << sentence_about(invariant, "down");
}

/// Where the recipe says that one order serves every number of tokens, a token alone has the bits it has among others; where it
/// says `few` up to a number, bits may change there and nowhere else.
TEST(L15, WhatRunsIsWhatTheRecipeSays) {
  for (const std::string& format : format_names()) {
    for (const bool transposed : {false, true}) {
      if (transposed && packed(format)) continue;
      LayerSpec spec = layer_spec(format);
      spec.gate_up = spec.down = projection(format, transposed);
      const auto weights = make_synthetic_weights(spec, 26);
      ThreadPool pool(1);
      const std::vector<float> x = inputs(40, spec.hidden);
      for (const std::string& target : usable_targets()) {
        Runner run = runner(spec, weights, "cpu", target);
        const std::int64_t limit = few_limit(sentence_about(run.plan(), "gate_up"));
        const bool many = limit == 0;
        EXPECT_EQ(many, transposed) << format;
        const auto first_token = [&](std::int64_t count) {
          const std::vector<float> part(x.begin(), x.begin() + count * spec.hidden);
          std::vector<float> out = run.experts(part, {{0, 0, count, 0, 0, 0}}, pool);
          out.resize(static_cast<std::size_t>(spec.hidden));
          return out;
        };
        const std::vector<float> alone = first_token(1), among_many = first_token(40);
        EXPECT_EQ(alone == among_many, many) << format << " on " << target;
        EXPECT_EQ(first_token(std::max<std::int64_t>(1, limit)), alone) << format << " on " << target;
        EXPECT_EQ(first_token(limit + 1), among_many) << format << " on " << target;
      }
    }
  }
}

TEST(L15, RowsOfBothHalvesReadTogetherHaveTheBitsOfRowsReadApart) {
  for (const std::string& format : format_names()) {
    LayerSpec spec = layer_spec(format);
    spec.gate_up.bias = true;
    if (spec.gate_up.block_rows != 1) spec.gate_up.block_rows = 1;  // scales of interleaved rows are each row's own
    spec.gate_up_order = GateUpOrder::interleaved;
    const auto together = make_synthetic_weights(spec, 27), apart = make_synthetic_weights(spec, 27);
    std::vector<std::vector<std::byte>> copies;  // of every `up`, so that it no longer lies between the rows of `gate`
    for (ExpertView& expert : apart->experts) {
      copies.emplace_back(expert.up.codes,
                          expert.up.codes + (expert.up.rows - 1) * expert.up.row_stride + expert.up.row_stride / 2);
      expert.up.codes = copies.back().data();
    }
    ThreadPool pool(2);
    const std::vector<float> x = inputs(kRows.total(), spec.hidden);
    for (const std::string& target : usable_targets())
      EXPECT_EQ(runner(spec, together, "cpu", target).experts(x, kRows, pool),
                runner(spec, apart, "cpu", target).experts(x, kRows, pool))
          << format << " on " << target;
  }
}

TEST(L15, InvariantGivesATokenTheSameBitsInAnyBatch) {
  for (const std::string& format : format_names()) {
    const LayerSpec spec = layer_spec(format);
    const auto weights = make_synthetic_weights(spec, 17);
    ThreadPool pool(2);
    const std::vector<float> x = inputs(40, spec.hidden);
    for (const std::string& target : usable_targets()) {
      Runner run = runner(spec, weights, "cpu", target, wishes_of(Arithmetic::bf16, true));
      const std::vector<float> all = run.experts(x, {{0, 0, 40, 0, 0, 0}}, pool);
      for (const std::int64_t count : {1, 2, 7}) {
        const std::vector<float> part(x.begin() + 3 * spec.hidden, x.begin() + (3 + count) * spec.hidden);
        const std::vector<float> got = run.experts(part, {{0, 0, count, 0, 0, 0}}, pool);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + 3 * spec.hidden))
            << format << " on " << target << ", tokens " << count;
      }
    }
  }
}

TEST(L15, RouterAndLatentProjectionsNeverDependOnTheBatch) {
  LayerSpec spec = layer_spec("bf16");
  spec.latent = 160;
  spec.latent_in = spec.latent_out = projection("bf16");
  spec.router.zero_experts = 3, spec.router.zero_expert_kind = ZeroExpertKind::identity;
  const auto weights = make_synthetic_weights(spec, 18);
  ThreadPool pool(2);
  const std::vector<float> x = inputs(40, spec.hidden);
  for (const std::string& target : usable_targets()) {
    Runner run = runner(spec, weights, "cpu", target);
    const std::vector<float> logits = run.router(x, 40, pool), latent = run.latent_in(x, 40, pool);
    const std::vector<float> alone(x.begin() + 17 * spec.hidden, x.begin() + 18 * spec.hidden);
    const std::vector<float> one_logits = run.router(alone, 1, pool), one_latent = run.latent_in(alone, 1, pool);
    EXPECT_TRUE(std::equal(one_logits.begin(), one_logits.end(), logits.begin() + 17 * (spec.experts + 3))) << target;
    EXPECT_TRUE(std::equal(one_latent.begin(), one_latent.end(), latent.begin() + 17 * spec.latent)) << target;
  }
}

TEST(L8, NaNOfOneTokenReachesNoOther) {
  for (const std::string& format : format_names()) {
    const LayerSpec spec = layer_spec(format);
    const auto weights = make_synthetic_weights(spec, 19);
    ThreadPool pool(2);
    const Rows rows{{0, 3, 9, 0, 0, 0}};
    const std::vector<float> clean = inputs(12, spec.hidden);
    std::vector<float> x = clean;
    x[static_cast<std::size_t>(1 * spec.hidden + 5)] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<std::size_t>(7 * spec.hidden + 5)] = std::numeric_limits<float>::infinity();
    for (const std::string& target : usable_targets()) {
      Runner run = runner(spec, weights, "cpu", target);
      const std::vector<float> truth = run.experts(clean, rows, pool), got = run.experts(x, rows, pool);
      for (std::int64_t r = 0; r < 12; ++r) {
        const auto begin = static_cast<std::ptrdiff_t>(r * spec.hidden), end = begin + spec.hidden;
        const bool same = std::equal(got.begin() + begin, got.begin() + end, truth.begin() + begin);
        EXPECT_EQ(same, r != 1 && r != 7) << format << " on " << target << ", row " << r;
      }
      EXPECT_TRUE(std::isnan(got[static_cast<std::size_t>(spec.hidden)])) << format << " on " << target;
    }
  }
}

TEST(Tiles, ManyTokensOfOneExpertAreLikeFew) {
  for (const std::string& format : format_names()) {
    const LayerSpec spec = layer_spec(format);
    const auto weights = make_synthetic_weights(spec, 23);
    ThreadPool pool(2);
    const Rows rows{{0, 0, 300, 0, 1, 0}};  // more than two tiles of tokens
    const std::vector<float> x = inputs(301, spec.hidden);
    const std::vector<float> truth = runner(spec, weights, "reference").experts(x, rows, pool);
    for (const std::string& target : usable_targets()) {
      Runner run = runner(spec, weights, "cpu", target);
      const std::vector<float> got = run.experts(x, rows, pool);
      EXPECT_LT(relative_error(got, truth), bound(run.plan())) << format << " on " << target;
      const std::vector<float> last(x.begin() + 260 * spec.hidden, x.begin() + 300 * spec.hidden);
      const std::vector<float> alone = run.experts(last, {{0, 0, 40, 0, 0, 0}}, pool);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), got.begin() + 260 * spec.hidden)) << format << " on " << target;
    }
  }
}

TEST(WeightBytes, NeedNoAlignment) {
  for (const std::string& format : format_names()) {
    const LayerSpec spec = layer_spec(format);
    const auto weights = make_synthetic_weights(spec, 24);
    ThreadPool pool(1);
    const std::vector<float> x = inputs(kRows.total(), spec.hidden);
    for (const std::string& target : usable_targets()) {
      auto moved = make_synthetic_weights(spec, 24);
      std::vector<std::unique_ptr<Memory>> buffers;
      const auto to_odd_address = [&](const std::byte*& from, std::int64_t bytes) {
        buffers.push_back(std::make_unique<Memory>(bytes + 1));
        std::memcpy(buffers.back()->data() + 1, from, static_cast<std::size_t>(bytes));
        from = buffers.back()->data() + 1;
      };
      for (ExpertView& expert : moved->experts) {
        for (WeightView* view : {&expert.gate, &expert.up, &expert.down}) {
          to_odd_address(view->codes, view->rows * view->row_stride);
          if (view->scales != nullptr)
            to_odd_address(view->scales, ceil_div(view->rows, view->block_rows) * view->scale_row_stride);
        }
      }
      EXPECT_EQ(runner(spec, moved, "cpu", target).experts(x, kRows, pool),
                runner(spec, weights, "cpu", target).experts(x, kRows, pool))
          << format << " on " << target;
    }
  }
}

TEST(L9, ZeroTokensAreANumberOfTokens) {
  LayerSpec spec = layer_spec("bf16");
  spec.latent = 160;
  spec.latent_in = spec.latent_out = projection("bf16");
  spec.shared = {.intermediate = 64,
                 .gate = false,
                 .activation = spec.activation,
                 .gate_up_order = spec.gate_up_order,
                 .gate_up = spec.gate_up,
                 .down = spec.down};
  const auto weights = make_synthetic_weights(spec, 25);
  ThreadPool pool(2);
  for (const Backend* backend : all_backends()) {
    Runner run = runner(spec, weights, std::string(backend->traits.name));
    EXPECT_TRUE(run.experts({}, {{0, 0, 0, 0, 0, 0}}, pool).empty());
    EXPECT_TRUE(run.shared({}, 0, pool).empty());
    EXPECT_TRUE(run.router({}, 0, pool).empty());
    EXPECT_TRUE(run.latent_in({}, 0, pool).empty());
    EXPECT_TRUE(run.latent_out({}, 0, pool).empty());
  }
}

TEST(L16, ScratchDoesNotDependOnTokens) {
  const LayerSpec spec = layer_spec("bf16");
  for (const Backend* backend : all_backends()) {
    Deployment few, many;
    few.wishes.backend = many.wishes.backend = std::string(backend->traits.name);
    few.wishes.arithmetic = many.wishes.arithmetic = level_of(backend->traits.name);
    many.tokens = 8192;
    const Environment machine = environment();
    EXPECT_EQ(plan_with(spec, few, machine, catalog()).value().area(AreaId::scratch)->bytes,
              plan_with(spec, many, machine, catalog()).value().area(AreaId::scratch)->bytes)
        << backend->traits.name;
  }
}

TEST(Router, TakesHiddenStatesAsTheyAre) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    LayerSpec spec = layer_spec("bf16");
    spec.hidden = 301;
    spec.experts = 33;
    spec.router.weight_dtype = dtype;
    const auto weights = make_synthetic_weights(spec, 20);
    ThreadPool pool(2);
    std::vector<float> x = inputs(21, spec.hidden);
    for (float& value : x) value *= 1.0001f;  // no longer bf16 values: rounding them would show
    const std::vector<float> truth = runner(spec, weights, "reference").router(x, 21, pool);
    for (const std::string& target : usable_targets()) {
      EXPECT_LT(relative_error(runner(spec, weights, "cpu", target).router(x, 21, pool), truth), f32_bound(spec.hidden)) << target;
    }
  }
}

TEST(PrepareRows, ScalesInFp32BeforeRoundingAndPicksSourceRows) {
  const LayerSpec spec = layer_spec("bf16");
  Runner run = runner(spec, make_synthetic_weights(spec, 21), "cpu");
  const std::uint16_t source[2][3] = {{0x3F80, 0x4000, 0x4040}, {0xBF80, 0x3F81, 0x7F80}};  // 1 2 3, -1 1.0078125 inf
  const std::int32_t index[2] = {1, 0};
  const float scale[2] = {3.0f, 0.25f};
  const std::int64_t stored = 32, stride = stored * run.element();
  Memory out(2 * stride);
  run.backend().prepare_rows({source, DType::bf16, 2, 3}, index, scale, 0, 2, out.data(), stride, stored);
  const double expected[2][4] = {{-3, 3.0234375, std::numeric_limits<double>::infinity(), 0}, {0.25, 0.5, 0.75, 0}};
  for (int row = 0; row < 2; ++row) {
    for (int k = 0; k < 4; ++k) {
      const std::byte* element = out.data() + row * stride + k * run.element();
      const float value = run.element() == 4 ? load_unaligned<float>(element) : bf16_to_f32(load_unaligned<std::uint16_t>(element));
      const float wanted = static_cast<float>(expected[row][k]);
      EXPECT_EQ(value, run.element() == 4 ? wanted : bf16_to_f32(f32_to_bf16(wanted))) << row << ", " << k;
    }
  }
}

TEST(Choice, PreparesRowsThatEveryProjectionTakesForManyTokens) {
  LayerSpec spec = layer_spec("bf16");
  spec.down = projection("f32");
  if (const auto targets = usable_targets(); std::find(targets.begin(), targets.end(), "avx512_bf16") == targets.end()) return;
  const Plan plan = plan_of(spec, "cpu", "avx512_bf16");
  EXPECT_EQ(plan.recipe.arithmetic, "bf16_dot for few tokens, f32 for many") << "f32 weights have no bf16 dot";
  EXPECT_EQ(plan.recipe.activation, DType::f32);
}

TEST(Choice, FollowsTheRankingOfTheProcessor) {
  Deployment deployment;
  deployment.wishes.backend = "cpu";
  Environment machine = environment();
  machine.arithmetic_ranking = machine.few_ranking = {"int4_unheard_of", "f32", "bf16_dot"};
  EXPECT_EQ(plan_with(layer_spec("bf16"), deployment, machine, catalog()).value().recipe.arithmetic, "f32");
  machine.arithmetic_ranking.clear();
  EXPECT_EQ(plan_with(layer_spec("bf16"), deployment, machine, catalog()).refusals.front().code, "format_not_built");
}

TEST(L4, ActPaddingIsZeroAndOnlyItsUnitIsStored) {
  LayerSpec spec = layer_spec("bf16");
  spec.intermediate = 41;
  const Plan plan = plan_of(spec, "cpu");
  const KernelSet* set =
      find_kernels("bf16", plan.target, plan.recipe.activation == DType::bf16 ? KernelArithmetic::bf16_dot : KernelArithmetic::f32);
  EXPECT_EQ(plan.stored(Axis::down_in), round_up(41, set->k_unit));
  EXPECT_EQ(plan.stored(Axis::up), 41);
  expect_within_bounds(spec, 22);  // act lies on NaN bytes: padding that were not written would show
}

}  // namespace
}  // namespace motet::testing
