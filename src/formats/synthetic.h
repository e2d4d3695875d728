// SPDX-License-Identifier: Apache-2.0
// Seeded synthetic weights of one layer, in the layouts that checkpoints use: separate, halves or interleaved, transposed or not.
// Every scale block has an exponent of its own in a narrow range (neighbours always differ), so that a wrong layout shows;
// formats without block scales get the same pattern over runs of 32 columns. Values are near 1/sqrt(K): outputs stay near 1.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/layer_weights.h"

namespace motet {

/// Weights for `spec`, in memory that the result owns. Equal specs and seeds give equal bytes.
/// Codes and scales are drawn directly by formats that can (SyntheticDraw); others encode drawn values.
/// Throws Error: invalid_argument (extents, block extents), not_supported (unknown format; packed format transposed),
/// would_not_fit (the memory is not there).
std::shared_ptr<LayerWeights> make_synthetic_weights(const LayerSpec& spec, std::uint64_t seed);

}  // namespace motet
