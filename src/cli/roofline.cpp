// SPDX-License-Identifier: Apache-2.0
#include "roofline.h"

#include <algorithm>
#include <string_view>

namespace motet::cli {
namespace {

struct RateRow {
  std::string_view arithmetic;
  double MeasuredRates::*rate;
  double share = 1;  // of the rate that is left for a kernel's operations
};
constexpr RateRow kRates[] = {
    {"f32", &MeasuredRates::f32_flops},
    {"bf16_dot", &MeasuredRates::bf16_flops},
    {"bf16_tile", &MeasuredRates::bf16_tile_flops},
    {"bf16x2_tile", &MeasuredRates::bf16_tile_flops, 0.5},  // every product twice
    {"int16_dot", &MeasuredRates::int16_ops},
    {"int8_dot", &MeasuredRates::int8_ops},
};

}  // namespace

double compute_rate(const MeasuredRates& rates, const std::string& arithmetic) {
  double rate = 0;
  for (const RateRow& row : kRates)
    if (arithmetic.find(row.arithmetic) != std::string::npos) rate = std::max(rate, row.share * rates.*row.rate);
  return rate;
}

Limit limit_of(double bytes, double flops, const MeasuredRates& rates, const std::string& arithmetic) {
  const double compute = compute_rate(rates, arithmetic);
  const double read_seconds = rates.read_bytes_per_second > 0 ? bytes / rates.read_bytes_per_second : 0;
  const double compute_seconds = compute > 0 ? flops / compute : 0;
  if (read_seconds <= 0 && compute_seconds <= 0) return {};
  return read_seconds >= compute_seconds ? Limit{read_seconds, "bandwidth"} : Limit{compute_seconds, "compute"};
}

}  // namespace motet::cli
