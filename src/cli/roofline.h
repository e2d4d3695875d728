// SPDX-License-Identifier: Apache-2.0
// How near a time is to what the machine could do: the larger of bytes over bandwidth and operations over the dot rate.
#pragma once

#include <string>

#include "motet/motet.hpp"

namespace motet::cli {

struct Limit {
  double seconds = 0;              ///< 0 = unknown
  std::string name;                ///< "bandwidth" or "compute", "" when unknown
};

/// The rate that bounds this arithmetic of a plan, or 0. Of several ("int16_dot for few tokens, bf16_tile for many") the largest: which
/// of them ran is each expert's own.
double compute_rate(const MeasuredRates& rates, const std::string& arithmetic);
/// The larger of the two where both rates are known, else the one that is.
Limit limit_of(double bytes, double flops, const MeasuredRates& rates, const std::string& arithmetic);

}  // namespace motet::cli
