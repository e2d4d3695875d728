// SPDX-License-Identifier: Apache-2.0
// Which kernels run a layer, and what that makes of widths, scratch and copies. Pure: planning and preparing ask the same
// functions.
//
// Each projection has an arithmetic for few tokens of an expert and one for many, each the first of this processor's rankings that
// keeps the wished level and has kernels for the format. All read the same prepared activations: bf16 when every projection's
// arithmetic for many tokens takes them, else fp32; kernels that compute in another type encode them in their scratch. The
// router alone is always f32: it takes hidden states as they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "plan/catalog.h"

namespace motet {

/// Kernels of one weight matrix.
struct CpuProjection {
  const KernelSet *few = nullptr, *many = nullptr;  ///< few is null when there are none, or all counts run `many`
  std::int64_t max_few = 0;                         ///< most tokens of an expert for which `few` runs; 0 = always `many`
  bool exists() const noexcept { return many != nullptr; }
  void run(const MatmulArgs& args, bool with_few) const noexcept { (with_few ? few->few : many->many)(args); }
};

/// Kernels of one layer; those of parts that it lacks do not exist. Latent projections are always `many`.
struct CpuKernels {
  DType activation = DType::f32;  ///< element type of prepared rows
  CpuProjection gate_up, down, shared_gate_up, shared_down, latent_in, latent_out;
  CpuProjection router;  ///< every chunk runs `few` where there is one, whatever the number of tokens
  /// "int16_dot", or "int16_dot for few tokens, bf16_tile for many": those of the routed experts.
  std::string arithmetic() const;
};

/// What the projections run for each sum of the layer, one sentence per projection.
std::vector<std::string> sum_orders(const CpuKernels& kernels, const LayerSpec& spec);
/// Where kernels round activations after they were prepared, one sentence per arithmetic.
std::vector<std::string> encodings(const CpuKernels& kernels);

struct CpuChoice {
  std::optional<CpuKernels> kernels;
  std::string reason;              ///< why these arithmetics
  std::optional<Refusal> refusal;  ///< set when there are no kernels
};

/// The kernels that the wishes and the rankings of this processor lead to.
CpuChoice choose_kernels(const LayerSpec& spec, const Deployment& deployment, const Environment& environment,
                         std::string_view target);

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
/// Bytes of repacked weights and, of them, of padding; 0 with residence mapped.
struct CpuPacked {
  std::int64_t bytes = 0, padding = 0;
};
CpuPacked cpu_packed(const LayerSpec& spec, const CpuExtents& extents, Residence residence) noexcept;

/// Bytes that preparing allocates beside repacked weights: biases and the list of slots with rows.
std::int64_t cpu_prepared_bytes(const LayerSpec& spec, const CpuExtents& extents) noexcept;

}  // namespace motet
