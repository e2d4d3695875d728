// SPDX-License-Identifier: Apache-2.0
#include "motet/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/status.h"

namespace motet {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

TEST(DType, EveryNameFindsItsTypeAgain) {
  for (int i = 0; i <= static_cast<int>(DType::c64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype) << name_of(dtype);
  }
  EXPECT_EQ(dtype_from_name("F8_E8M0"), DType::f8_e8m0);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DType, BytesOfCountRefusesOverflowNegativesAndHalfBytes) {
  EXPECT_EQ(bytes_of(DType::bf16, 3), 6);
  EXPECT_EQ(bytes_of(DType::f4, 4), 2);
  EXPECT_EQ(bytes_of(DType::f6_e2m3, 4), 3);
  EXPECT_EQ(bytes_of(DType::f4, 3), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f32, -1), std::nullopt);
  EXPECT_EQ(bytes_of(DType::f32, kLargest / 4), kLargest / 4 * 4);
  EXPECT_EQ(bytes_of(DType::f32, kLargest / 4 + 1), std::nullopt);
  EXPECT_EQ(bytes_of(DType::u8, kLargest), kLargest);
}

template <class T>
double load(DType dtype, T value) {
  std::byte bytes[sizeof(T) + 1];
  std::memcpy(bytes + 1, &value, sizeof value);  // odd address: only 1-byte alignment may be assumed
  return load_as_f64(dtype, bytes + 1);
}

TEST(DType, LoadsElementsFromOddAddresses) {
  EXPECT_EQ(load(DType::f32, 1.5f), 1.5);
  EXPECT_EQ(load(DType::f64, -0.1), -0.1);
  EXPECT_EQ(load(DType::i64, std::int64_t{-7}), -7);
  EXPECT_EQ(load(DType::u16, std::uint16_t{0xFFFF}), 65535);
  EXPECT_EQ(load(DType::bf16, std::uint16_t{0xC040}), -3);
  EXPECT_EQ(load(DType::f16, std::uint16_t{0x3C00}), 1);
  EXPECT_EQ(load(DType::f8_e8m0, std::uint8_t{0}), std::ldexp(1.0, -127));
}

TEST(DType, FnuzIsHalfOfFnAndItsOnlyNaNIs0x80) {
  EXPECT_EQ(load(DType::f8_e4m3fnuz, std::uint8_t{0x01}), 0.0009765625);
  EXPECT_EQ(load(DType::f8_e4m3fnuz, std::uint8_t{0x38}), 0.5);
  EXPECT_EQ(load(DType::f8_e4m3fnuz, std::uint8_t{0x7F}), 240);
  EXPECT_TRUE(std::isnan(load(DType::f8_e4m3fnuz, std::uint8_t{0x80})));
  EXPECT_EQ(load(DType::f8_e5m2fnuz, std::uint8_t{0x01}), std::ldexp(1.0, -17));
  EXPECT_TRUE(std::isnan(load(DType::f8_e5m2fnuz, std::uint8_t{0x80})));
}

TEST(L17, ProductsAndSumsOfSizesTellOverflow) {
  std::int64_t result = 0;
  EXPECT_TRUE(checked_mul(std::int64_t{1} << 40, 1 << 20, &result));
  EXPECT_EQ(result, std::int64_t{1} << 60);
  EXPECT_FALSE(checked_mul(std::int64_t{1} << 40, std::int64_t{1} << 40, &result));
  EXPECT_FALSE(checked_add(kLargest, 1, &result));
  EXPECT_FALSE(checked_round_up(kLargest, 64, &result));
  EXPECT_FALSE(checked_round_up(-1, 64, &result));
  EXPECT_TRUE(checked_round_up(65, 64, &result));
  EXPECT_EQ(result, 128);
}

TEST(Math, RoundsToUnits) {
  EXPECT_EQ(round_up(2880, 128), 2944);
  EXPECT_EQ(round_up(0, 64), 0);
  EXPECT_EQ(round_up(64, 64), 64);
  EXPECT_EQ(round_down(2880, 128), 2816);
  EXPECT_EQ(ceil_div(kLargest, 1), kLargest);
  EXPECT_EQ(ceil_div(kLargest, 2), kLargest / 2 + 1);
}

TEST(ErrorCode, NamesAndExitCodesAreStable) {
  EXPECT_EQ(name_of(ErrorCode::ok), "ok");
  EXPECT_EQ(name_of(ErrorCode::tokens_exceed_plan), "tokens_exceed_plan");
  EXPECT_EQ(exit_code_of(ErrorCode::ok), 0);
  EXPECT_EQ(exit_code_of(ErrorCode::check_failed), 1);
  EXPECT_EQ(exit_code_of(ErrorCode::invalid_argument), 2);
  EXPECT_EQ(exit_code_of(ErrorCode::not_supported), 3);
  EXPECT_EQ(exit_code_of(ErrorCode::would_not_fit), 4);
  EXPECT_EQ(exit_code_of(ErrorCode::bad_input), 5);
  for (int i = 1; i <= static_cast<int>(ErrorCode::internal); ++i) EXPECT_NE(exit_code_of(static_cast<ErrorCode>(i)), 0) << i;
}

TEST(RunStatus, HoldsTheSentenceAndMarksWhereItWasCut) {
  const RunStatus status = make_status(ErrorCode::wrong_shape, "%lld columns, the plan has %d", 5LL, 7);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.text(), "5 columns, the plan has 7");
  const RunStatus cut = make_status(ErrorCode::internal, "%s", std::string(1000, 'x').c_str());
  EXPECT_EQ(cut.text().size(), cut.message.size() - 1);
  EXPECT_TRUE(cut.text().ends_with("x..."));
  EXPECT_TRUE(RunStatus{}.ok());
}

TEST(CheckDeathTest, AbortsWithFileAndValues) {
  const long long rows = 3;
  EXPECT_DEATH(MOTET_CHECK(rows == 4, "rows %lld", rows), "types_test.cpp:[0-9]+: check failed: rows == 4: rows 3");
  EXPECT_DEATH(MOTET_CHECK(rows == 4), "check failed: rows == 4\n");
  MOTET_CHECK(rows == 3);
}

}  // namespace
}  // namespace motet
