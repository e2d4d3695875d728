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

/// The rate that bounds this kernel arithmetic, or 0.
double compute_rate(const MeasuredRates& rates, const std::string& arithmetic);
Limit limit_of(double bytes, double flops, const MeasuredRates& rates, const std::string& arithmetic);

}  // namespace motet::cli
