// SPDX-License-Identifier: Apache-2.0
// The model of the tile instructions: against their definition on values that tell orders of sums apart, and bit for bit against
// the processor where it has them.
#if defined(__x86_64__)
#define MOTET_TARGET tile_model_test
#include "kernels/tile_model.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/cpu_features.h"

namespace motet {
namespace {

using tile_model_test::TileConfig;
using tile_model_test::TileModel;
using tile_model_test::TileUnit;

/// Operands of one product: C tokens x columns, A tokens x pairs, B pairs x columns, rows of all at 64 bytes.
struct Operands {
  int rows = 1, pairs = 1, columns = 1;
  alignas(64) float c[16][16] = {};
  alignas(64) std::uint16_t a[16][32] = {}, b[16][32] = {};
};

TileConfig config_of(const Operands& x) {
  TileConfig config;
  config.set(0, x.rows, 4 * x.columns);
  config.set(1, x.rows, 4 * x.pairs);
  config.set(2, x.pairs, 4 * x.columns);
  return config;
}

/// C after one product, bits; what lies outside the tile keeps its marks.
template <class Unit>
std::vector<std::uint32_t> product(const Operands& x) {
  std::vector<std::uint32_t> out(16 * 16, 0xABCDABCDu);
  Unit unit;
  unit.configure(config_of(x));
  unit.template load<0>(x.c, 64);
  unit.template load<1>(x.a, 64);
  unit.template load<2>(x.b, 64);
  unit.template dot<0, 1, 2>();
  unit.template store<0>(out.data(), 64);
  unit.release();
  return out;
}
float first_of(const Operands& x) { return std::bit_cast<float>(product<TileModel>(x)[0]); }

TEST(TileModel, SumsEvenAndOddProductsApart) {
  Operands x{.pairs = 2};
  const float a[] = {0x1p24f, 1, 0, 1};
  for (int i = 0; i < 4; ++i) x.a[0][i] = f32_to_bf16(a[i]), x.b[i / 2][i % 2] = f32_to_bf16(1);
  x.c[0][0] = 4;
  EXPECT_EQ(first_of(x), 0x1p24f + 6) << "one after the other, each 1 would be lost beside 2^24";
}

TEST(TileModel, TakesSubnormalsForZero) {
  Operands x;
  x.a[0][0] = 0x0001, x.b[0][0] = f32_to_bf16(0x1p100f);                  // a subnormal operand
  x.a[0][1] = f32_to_bf16(0x1p-64f), x.b[0][1] = f32_to_bf16(-0x1p-64f);  // a subnormal product: -0
  x.c[0][0] = 0x1p-130f;
  EXPECT_EQ(std::bit_cast<std::uint32_t>(first_of(x)), 0u) << "0 + -0 is 0, and so is a subnormal sum";
  x.c[0][0] = -0x1p-130f;
  x.a[0][0] = 0, x.b[0][0] = 0x8000;
  EXPECT_EQ(std::bit_cast<std::uint32_t>(first_of(x)), 0u) << "the sum of products starts at +0";
}

TEST(TileModel, FlushesWhatIsBelowTheSmallestNormalBeforeRoundingUpToIt) {
  using tile_model_test::flushed_fma;
  const float below =
      -0x1.8p-76f;  // 0x1p-126 - 0.75 x 2^-150: half way and more to the smallest normal among subnormals, not at 24 bits
  EXPECT_EQ(flushed_fma(below, 0x1p-75f, 0x1p-126f), 0.0f);
  EXPECT_EQ(flushed_fma(-0x1p-76f, 0x1p-75f, 0x1p-126f), 0x1p-126f) << "a tie goes to even";
}

TEST(TileModelDeathTest, StopsWhereTheProcessorWould) {
  EXPECT_DEATH(TileModel().zero<0>(), "not configured");
  const auto multiply_three_by_two_pairs = [] {
    Operands x;
    x.rows = 3, x.pairs = 2;
    TileConfig config = config_of(x);
    config.set(1, 3, 4 * 3);
    TileModel model;
    model.configure(config);
    model.dot<0, 1, 2>();
  };
  EXPECT_DEATH(multiply_three_by_two_pairs(), "shapes of tiles");
}

/// bf16 bits of every kind: ordinary, near one another, zeros, subnormals, tiny, huge, infinity, NaN.
std::uint16_t draw(std::mt19937& random, int kind) {
  const auto bits = static_cast<std::uint16_t>(random());
  const auto with_exponent = [&](int exponent) { return static_cast<std::uint16_t>((bits & 0x807F) | exponent << 7); };
  switch (kind == 0 ? 0 : random() % 16) {
    case 1:
      return bits & 0x8000;
    case 2:
      return with_exponent(0);
    case 3:
      return with_exponent(64 + static_cast<int>(random() % 4));  // products around 2^-126
    case 4:
      return with_exponent(1 + static_cast<int>(random() % 3));
    case 5:
      return kind == 2 ? with_exponent(190 + static_cast<int>(random() % 4)) : with_exponent(127);
    case 6:
      return kind == 2 ? static_cast<std::uint16_t>((bits & 0x8000) | 0x7F80) : with_exponent(126);
    case 7:
      return kind == 2 ? with_exponent(255) : with_exponent(128);
    default:
      return with_exponent(120 + static_cast<int>(random() % 12));
  }
}

TEST(TileModel, AgreesWithTheProcessorBitForBit) {
  if (!this_cpu().amx_tile || !this_cpu().amx_bf16) GTEST_SKIP() << "AMX TILE and BF16";
  std::mt19937 random(20261201);
  const auto is_nan = [](std::uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; };
  int products = 0;
  for (int rows = 1; rows <= 16; ++rows)
    for (int pairs = 1; pairs <= 16; ++pairs)
      for (const int columns : {1, 7, 16})
        for (int kind = 0; kind < 3; ++kind, ++products) {
          Operands x{.rows = rows, .pairs = pairs, .columns = columns};
          for (int i = 0; i < 16 * 32; ++i) x.a[i / 32][i % 32] = draw(random, kind), x.b[i / 32][i % 32] = draw(random, kind);
          for (int i = 0; i < 16 * 16; ++i)
            x.c[i / 16][i % 16] =
                std::bit_cast<float>(static_cast<std::uint32_t>(std::uint32_t{draw(random, kind)} << 16 | (random() & 0xFFFF)));
          const auto expected = product<TileUnit>(x), got = product<TileModel>(x);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_TRUE(got[i] == expected[i] || (is_nan(got[i]) && is_nan(expected[i])))
                << rows << " rows, " << pairs << " pairs, " << columns << " columns, kind " << kind << ", element " << i << ": "
                << std::hex << got[i] << " instead of " << expected[i];
        }
  EXPECT_EQ(products, 16 * 16 * 3 * 3);
}

TEST(TileModel, ConfiguringAndLoadingClearWhatTheyDoNotFill) {
  const auto rest = [](auto unit) {
    std::vector<std::uint32_t> out(16 * 16, 1), ones(16 * 16, 0x3F803F80u);
    TileConfig config;
    config.set(3, 16, 64);
    unit.configure(config);
    unit.template load<3>(ones.data(), 64);
    unit.configure(config);
    unit.template store<3>(out.data(), 64);
    unit.release();
    return out;
  };
  EXPECT_EQ(rest(TileModel()), std::vector<std::uint32_t>(16 * 16, 0));
  if (!this_cpu().amx_tile) GTEST_SKIP() << "AMX TILE";
  EXPECT_EQ(rest(TileUnit()), std::vector<std::uint32_t>(16 * 16, 0));
}

}  // namespace
}  // namespace motet
#endif
