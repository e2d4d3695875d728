// SPDX-License-Identifier: Apache-2.0
// Bytes and arithmetic of a forward, counted from the views of the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/layer_weights.h"

namespace motet {

/// Distinct bytes of one stored matrix: codes and scales.
std::int64_t matrix_bytes(const WeightView& view, double bits_per_value);

/// What one forward costs per part. Bytes are read once per forward, flops count once per row (2 per valid weight).
struct ReadCosts {
  std::vector<std::int64_t> expert_bytes;  ///< [experts]
  double expert_flops = 0;
  std::int64_t shared_bytes = 0;
  double shared_flops = 0;
  std::int64_t router_bytes = 0;
  double router_flops = 0;
  std::int64_t latent_in_bytes = 0, latent_out_bytes = 0;  ///< the norm belongs to the way out
  double latent_flops = 0;                                 ///< of one projection
};
ReadCosts read_costs_of(const LayerWeights& weights);

/// Appends the bytes between the first and the last byte of codes, and of scales.
void add_spans(const WeightView& view, double bits_per_value, std::vector<ByteSpan>& spans);
/// The same bytes, ascending, spans that overlap or touch made one.
std::vector<ByteSpan> joined(std::vector<ByteSpan> spans);

/// Which parts of a layer a forward read.
struct PartsRead {
  const std::int64_t* expert_rows = nullptr;  ///< [experts]; an expert without rows was not read
  ByteSpan packed = {};                       ///< where experts, the shared one too, lie anew; empty = as published
  bool shared = false, router = false, latent_in = false, latent_out = false;
};
/// Codes and scales of these parts; small vectors such as biases are left out.
std::vector<ByteSpan> spans_read(const LayerWeights& weights, const PartsRead& parts);

/// A bias, gate or norm vector as fp32; empty when there is none.
std::vector<float> floats_of(const BiasView& view);

/// Throws Error(wrong_shape) when a vector that the runtime reads itself is not what the spec calls for. Matrices and the
/// experts' biases are checked by the backend that reads them.
void check_vectors(const LayerSpec& spec, const LayerWeights& weights);

}  // namespace motet
