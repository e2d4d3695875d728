// SPDX-License-Identifier: Apache-2.0
// Which kernels run a layer, and what that makes of widths, scratch and copies. Pure: planning and preparing ask the same
// functions.
//
// One arithmetic per layer: all projections share the prepared activations, so the arithmetic is one for which every projection
// has kernels at the target. The router alone is always f32: it takes hidden states as they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "plan/catalog.h"

namespace motet {

/// Kernel sets of one layer; those of parts that it lacks are null.
struct CpuKernels {
  KernelArithmetic arithmetic = KernelArithmetic::f32;
  const KernelSet *gate_up = nullptr, *down = nullptr;
  const KernelSet *shared_gate_up = nullptr, *shared_down = nullptr;
  const KernelSet *latent_in = nullptr, *latent_out = nullptr;
  const KernelSet* router = nullptr;
  DType activation() const noexcept { return gate_up->activation; }
};

/// Most tokens of an expert for which a projection runs `few`; 0 = always `many`. Latent projections are always `many`.
struct CpuFew {
  std::int64_t gate_up = 0, down = 0, shared_gate_up = 0, shared_down = 0;
  std::int64_t router = 0;  ///< tokens of a chunk; every chunk runs `few`, whatever the number of tokens
};
/// From kernels, layouts and the wish alone, so that the recipe can say it and running decides nothing.
CpuFew few_of(const CpuKernels& kernels, const LayerSpec& spec, bool invariant) noexcept;
/// What few_of means for each sum of the layer, one sentence per projection.
std::vector<std::string> sum_orders(const CpuKernels& kernels, const LayerSpec& spec, bool invariant);

struct CpuChoice {
  std::optional<CpuKernels> kernels;
  std::string reason;              ///< why this arithmetic
  std::optional<Refusal> refusal;  ///< set when there are no kernels
};

/// The arithmetic that the wish and the ranking of this processor lead to.
CpuChoice choose_kernels(const LayerSpec& spec, const Deployment& deployment, const Environment& environment,
                         std::string_view target);
/// The kernels of one arithmetic, or the projection that has none.
CpuChoice kernels_for(const LayerSpec& spec, std::string_view target, KernelArithmetic arithmetic);

/// Extents of one rank.
struct CpuExtents {
  std::int64_t experts = 0, intermediate = 0, shared_intermediate = 0;
};

/// Stored widths: multiples of the kernels' k_unit on reduction axes.
struct CpuWidths {
  std::int64_t hidden = 0, latent = 0, intermediate = 0, shared_intermediate = 0;
};
CpuWidths cpu_widths(const CpuKernels& kernels, const LayerSpec& spec, const CpuExtents& extents);

/// Bytes of one thread's scratch: the kernels' own, then two fp32 tiles (gate, up) or one chunk of fp32 hidden states (router).
struct CpuScratch {
  std::int64_t kernel = 0, tiles = 0, router_stride = 0;
  std::int64_t bytes() const noexcept { return kernel + tiles; }
};
constexpr std::int64_t kTileElements = 8192;  ///< 32 KiB per tile: both stay in a second-level cache beside the slab
constexpr std::int64_t kTileTokens = 128;     ///< most tokens of a tile
constexpr std::int64_t kFewTileRows =
    128;  ///< rows of a tile when `few` runs: long calls, and the tile stays in the first-level cache
constexpr std::int64_t kManyTileRows = kTileElements / kTileTokens;
constexpr std::int64_t kRouterManyTokens = 16;  ///< tokens per chunk where the router has no `few`
CpuScratch cpu_scratch(const CpuKernels& kernels, const LayerSpec& spec, const CpuExtents& extents);

/// fp32 copies of bias vectors, in elements; each of gate, up and down is contiguous.
std::int64_t bias_elements(const LayerSpec& spec, const CpuExtents& extents) noexcept;
/// Bytes that preparing allocates: biases and the list of slots with rows.
std::int64_t cpu_prepared_bytes(const LayerSpec& spec, const CpuExtents& extents) noexcept;

}  // namespace motet
