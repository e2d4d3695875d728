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

/// Sizes of weights, counted as a checkpoint counts them: parameters are the elements of matrices (and of the shared gate), not
/// biases and not scales. A spec does not say the dtype of its vectors.
struct WeightSize {
  std::int64_t bytes = 0;       ///< of codes, scales and vectors, a vector's element as files usually hold it: BF16
  std::int64_t most_bytes = 0;  ///< the same with F32 vectors: an upper bound
  std::int64_t parameters = 0;
};

/// One matrix [rows, cols] with its scales and bias.
WeightSize matrix_size(const Catalog& catalog, const ProjectionSpec& projection, std::int64_t rows, std::int64_t cols) noexcept;
/// Gate (when there is one), up and down of one routed expert that holds `intermediate` of its rows.
WeightSize expert_size(const Catalog& catalog, const LayerSpec& spec, std::int64_t intermediate) noexcept;
/// What every token reads whatever its experts: router, shared expert (of this intermediate) with its gate, latent projections.
/// The token table of hash routing is not in it: its length is the vocabulary's.
WeightSize common_size(const Catalog& catalog, const LayerSpec& spec, std::int64_t shared_intermediate) noexcept;

}  // namespace motet
