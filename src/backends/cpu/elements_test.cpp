// SPDX-License-Identifier: Apache-2.0
#include "kernels/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backends/reference/double_body.h"
#include "backends/testing.h"

namespace motet::testing {
namespace {

constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32

const ElementKernels& generic() { return *find_elements("generic"); }
float body_exp(float x) { return generic().body_exp(x); }
void apply_body(const Activation& body, const float* gate, float* up, std::int64_t count) {
  generic().apply_body(body, gate, up, count);
}

TEST(BodyExp, IsWithinThreeUnitsOfTheLastPlace) {
  double worst = 0;
  for (float x = -87; x < 88; x += 0.0007f) worst = std::max(worst, std::abs(body_exp(x) / std::exp(static_cast<double>(x)) - 1));
  EXPECT_LT(worst, 6 * kUnit);
  EXPECT_EQ(body_exp(0), 1);
}

TEST(BodyExp, SaturatesToFiniteNormalNumbers) {
  EXPECT_TRUE(std::isnormal(body_exp(-1e30f)));
  EXPECT_TRUE(std::isfinite(body_exp(1e30f)));
  EXPECT_TRUE(std::isnan(body_exp(std::numeric_limits<float>::quiet_NaN())));
}

class Bodies : public ::testing::TestWithParam<ActivationKind> {};

TEST_P(Bodies, FollowTheFormula) {
  const Activation body = activation(GetParam());
  for (float g = -30; g < 30; g += 0.37f) {
    for (float u = -30; u < 30; u += 0.91f) {
      float up = u;
      apply_body(body, body.gated ? &g : nullptr, &up, 1);
      const double truth = double_body(body, g, u);
      // The exponent that a sigmoid took: fp32 rounds it before e^x, so that its size times the unit roundoff is lost.
      const double size = std::abs(static_cast<double>(g) * u),
                   exponent = truth == 0 ? 0 : std::abs(std::log(std::abs(truth) / size));
      const double oracle = 0x1p-52 * size;  // double's own loss in 1 + tanh(z) for z << 0
      ASSERT_NEAR(up, truth, (16 + 4 * exponent) * kUnit * std::abs(truth) + oracle) << "g " << g << ", u " << u;
    }
  }
}

TEST_P(Bodies, GiveTheSameBitsWhereverAnElementStands) {
  const Activation body = activation(GetParam());
  std::vector<float> gate, up;
  for (int i = 0; i < 67; ++i) gate.push_back(static_cast<float>(i) * 0.31f - 9), up.push_back(4 - static_cast<float>(i) * 0.17f);
  std::vector<float> together = up;
  apply_body(body, body.gated ? gate.data() : nullptr, together.data(), 67);
  for (std::size_t i = 0; i < 67; ++i) {
    apply_body(body, body.gated ? &gate[i] : nullptr, &up[i], 1);
    ASSERT_EQ(bits_of_f32(up[i]), bits_of_f32(together[i])) << i;
  }
}

TEST_P(Bodies, KeepNaNInItsElement) {
  const Activation body = activation(GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int which = body.gated ? 0 : 1; which < 2; ++which) {
    float gate[8] = {1, 1, 1, 1, 1, 1, 1, 1}, up[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    (which == 0 ? gate : up)[5] = nan;
    apply_body(body, body.gated ? gate : nullptr, up, 8);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(up[i]), i == 5) << i;
  }
}

TEST_P(Bodies, HaveTheSameBitsOnEveryTarget) {
  const Activation body = activation(GetParam());
  std::vector<float> gate, up;
  for (int i = 0; i < 4099; ++i) gate.push_back(std::sin(0.37f * i) * 20), up.push_back(std::cos(0.71f * i) * 20);
  std::vector<float> expected = up;
  apply_body(body, body.gated ? gate.data() : nullptr, expected.data(), 4099);
  for (const std::string& target : usable_targets()) {
    std::vector<float> got = up;
    find_elements(target)->apply_body(body, body.gated ? gate.data() : nullptr, got.data(), 4099);
    EXPECT_EQ(got, expected) << target;
  }
}
INSTANTIATE_TEST_SUITE_P(All, Bodies,
                         ::testing::Values(ActivationKind::silu, ActivationKind::gelu_tanh, ActivationKind::swiglu_oai,
                                           ActivationKind::swiglu_clamped, ActivationKind::swiglu_step, ActivationKind::situ,
                                           ActivationKind::relu2));

TEST(StoreAs, RoundsToNearestEvenBf16) {
  const float values[] = {1.0f, 1.00390625f, 1.01171875f, std::numeric_limits<float>::quiet_NaN()};
  std::uint16_t codes[4];
  generic().store_as(DType::bf16, values, 4, reinterpret_cast<std::byte*>(codes));
  EXPECT_EQ(codes[0], 0x3F80);
  EXPECT_EQ(codes[1], 0x3F80);  // tie to even
  EXPECT_EQ(codes[2], 0x3F82);  // tie to even
  EXPECT_GT(codes[3] & 0x7FFF, 0x7F80);
}

}  // namespace
}  // namespace motet::testing
