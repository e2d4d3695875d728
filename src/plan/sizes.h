// SPDX-License-Identifier: Apache-2.0
// Sizes of weights and areas. Everything is 64-bit and saturates (L17), so that a hostile extent becomes a refusal.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "plan/catalog.h"

namespace motet {

/// Sums of a few dozen sizes up to this one cannot overflow; a larger one is refused as too_large.
inline constexpr std::int64_t kLargestSize = std::int64_t{1} << 56;

/// Product of extents >= 0, or kLargestSize + 1 when it is larger than kLargestSize.
std::int64_t bounded_product(std::initializer_list<std::int64_t> extents) noexcept;

/// Bytes and elements of weights.
struct WeightSize {
  std::int64_t bytes = 0, parameters = 0;
};

/// One matrix [rows, cols] with its scales and bias. A bias element counts 4 bytes: files hold bf16 or f32, and the spec does not
/// say.
WeightSize matrix_size(const Catalog& catalog, const ProjectionSpec& projection, std::int64_t rows, std::int64_t cols) noexcept;
/// Gate (when there is one), up and down of one routed expert that holds `intermediate` of its rows.
WeightSize expert_size(const Catalog& catalog, const LayerSpec& spec, std::int64_t intermediate) noexcept;
/// What every token reads whatever its experts: router, shared expert (of this intermediate) with its gate, latent projections.
/// The token table of hash routing is not in it: its length is the vocabulary's.
WeightSize common_size(const Catalog& catalog, const LayerSpec& spec, std::int64_t shared_intermediate) noexcept;

}  // namespace motet
