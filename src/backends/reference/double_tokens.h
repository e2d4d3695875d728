// SPDX-License-Identifier: Apache-2.0
// Up to a few dozen tokens side by side in double precision, and one decoded weight row times all of them: the inner part of
// double_experts.
#pragma once

#include <algorithm>

#include "backends/reference/quantised_rows.h"
#include "base/math.h"
#include "base/numbers.h"
#include "formats/format.h"

namespace motet {

inline constexpr std::int64_t kLanes = 8;  ///< tokens side by side: independent sums hide the latency of an addition

/// One token's elements as doubles.
inline double element_of(const std::byte* row, DType dtype, std::int64_t k) noexcept {
  if (dtype == DType::f32) return load_unaligned<float>(row + k * 4);
  const auto code = load_unaligned<std::uint16_t>(row + k * 2);
  return dtype == DType::bf16 ? bf16_to_f32(code) : f16_to_f32(code);
}

/// Tokens of one operand: group g, element k, lane at values[(g * cols + k) * kLanes + lane]; absent lanes are 0.
struct Tokens {
  double* values;
  std::int64_t cols, count;
  std::int64_t groups() const noexcept { return ceil_div(count, kLanes); }
  double* at(std::int64_t token, std::int64_t k) const noexcept {
    return values + ((token / kLanes) * cols + k) * kLanes + token % kLanes;
  }
};

inline void load(const Tokens& tokens, const std::byte* rows, std::int64_t stride, DType dtype) noexcept {
  for (std::int64_t t = 0; t < tokens.groups() * kLanes; ++t) {
    for (std::int64_t k = 0; k < tokens.cols; ++k)
      *tokens.at(t, k) = t < tokens.count ? element_of(rows + t * stride, dtype, k) : 0.0;
  }
}

inline void load(const Tokens& tokens, const QuantisedRows& rows, std::int64_t first) noexcept {
  for (std::int64_t t = 0; t < tokens.groups() * kLanes; ++t) {
    for (std::int64_t k = 0; k < tokens.cols; ++k) *tokens.at(t, k) = t < tokens.count ? rows.at(first + t, k) : 0.0;
  }
}

/// Decodes one row of `view` and multiplies all tokens by it: sums[token].
class RowProduct {
 public:
  RowProduct(const Format& format, const WeightView& view, double* row) noexcept : format_(format), view_(view), row_(row) {}
  void operator()(std::int64_t n, const Tokens& tokens, double* sums) const noexcept {
    format_.decode(view_, n, 0, view_.cols, row_);
    for (std::int64_t group = 0; group < tokens.groups(); ++group) {
      double sum[kLanes] = {};
      const double* x = tokens.values + group * tokens.cols * kLanes;
      for (std::int64_t k = 0; k < tokens.cols; ++k, x += kLanes) {
        for (std::int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += row_[k] * x[lane];
      }
      std::copy(sum, sum + kLanes, sums + group * kLanes);
    }
  }

 private:
  const Format& format_;
  const WeightView& view_;
  double* row_;
};

inline double bias_of(const BiasView& bias, std::int64_t i) noexcept {
  return bias.data == nullptr ? 0.0 : element_of(bias.data + i * bias.stride, bias.dtype, 0);
}

}  // namespace motet
