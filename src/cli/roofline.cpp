// SPDX-License-Identifier: Apache-2.0
#include "roofline.h"

namespace motet::cli {

double compute_rate(const MeasuredRates& rates, const std::string& arithmetic) {
  if (arithmetic == "bf16_dot") return rates.bf16_flops;
  if (arithmetic == "f32") return rates.f32_flops;
  return 0;
}

Limit limit_of(double bytes, double flops, const MeasuredRates& rates, const std::string& arithmetic) {
  const double compute = compute_rate(rates, arithmetic);
  if (rates.read_bytes_per_second <= 0 || compute <= 0) return {};
  const double read_seconds = bytes / rates.read_bytes_per_second;
  const double compute_seconds = flops / compute;
  return read_seconds >= compute_seconds ? Limit{read_seconds, "bandwidth"} : Limit{compute_seconds, "compute"};
}

}  // namespace motet::cli
