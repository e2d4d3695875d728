// SPDX-License-Identifier: Apache-2.0
// Seeded numbers for synthetic inputs: SplitMix64 (Steele, Lea, Flood 2014), the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace motet {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() noexcept {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// Uniform in (0, 1].
  double uniform() noexcept { return (static_cast<double>(bits() >> 11) + 1) * 0x1p-53; }
  /// Uniform in [0, count). Requires count > 0.
  std::int64_t below(std::int64_t count) noexcept { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(count)); }
  /// Standard normal (Box, Muller 1958).
  double normal() noexcept {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

}  // namespace motet
