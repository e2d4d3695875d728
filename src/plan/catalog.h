// SPDX-License-Identifier: Apache-2.0
// What plan() must know of formats and backends, as data and pure functions. Higher floors fill the catalog
// (runtime/catalog.cpp); planning itself includes nothing above this floor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motet/plan.h"

namespace motet {

/// Facts of a weight format that planning needs.
struct FormatFacts {
  std::string_view name, about;
  double bits_per_value = 0;           ///< codes only
  std::int64_t values_per_block = 1, bytes_per_block = 0;   ///< smallest whole run of codes along the reduction axis
  std::int64_t scale_bytes = 0;        ///< per scale; 0 = none
  std::int64_t tensor_scale_bytes = 0; ///< of the one scale over a whole matrix; 0 = none
  std::int64_t block_rows = 1, block_cols = 1;              ///< values that share a scale in the usual layout; 0 = all
  std::int64_t block_cols_unit = 1;    ///< a scale covers a multiple of this many columns, or all of them
  double relative_step = 0;            ///< half a unit in the last place of a code, relative: the format's own rounding
};

/// What a backend is asked to run. Pure values.
struct BackendRequest {
  const LayerSpec& spec;
  const Deployment& deployment;
  const Environment& environment;
  std::string_view target;             ///< "" when the backend has no targets
  std::int64_t tokens = 0;
  std::int64_t experts_here = 0;       ///< slots of one rank (the largest)
  std::int64_t intermediate_valid = 0; ///< of one rank (the largest slice)
  std::int64_t shared_intermediate_valid = 0;
  int threads = 1;
};

/// Activations of the routed experts that a backend quantises before each of their two products, and how their scales must lie (L6).
struct QuantisedStorage {
  std::int64_t group = 0;              ///< columns of a row that share a scale; 0 = nothing is quantised
  Layout layout = Layout::flat_scales; ///< flat_scales or swizzled_128x4
  DType code = DType::f8_e4m3, scale = DType::f8_e8m0;
  double step = 0;                     ///< largest relative rounding of an element
};

/// Extents and element types that a backend stores; all >= the valid ones.
struct BackendStorage {
  std::int64_t hidden = 0;             ///< of prepared hidden states (reduction axis of gate and up, shared expert, latent_in)
  std::int64_t latent = 0;
  std::int64_t intermediate = 0;       ///< of act (reduction axis of down)
  std::int64_t gate = 0, up = 0;       ///< stored rows of the halves, each padded on its own (L4)
  std::int64_t shared_intermediate = 0;
  std::int64_t rows_width = 0;         ///< stored width of GEMM2 rows; >= dispatch width
  DType activation = DType::f32;
  std::int64_t scratch_per_thread = 0; ///< bytes
  std::int64_t prepared = 0;           ///< bytes that prepare() allocates beside repacked weights
  std::int64_t packed = 0;             ///< bytes of repacked weights; 0 where published bytes are used as they lie
  std::int64_t packed_padding = 0;     ///< of them, what the published bytes do not have
  std::string arithmetic;              ///< "double", "f32", "bf16_dot"
  std::string reason;                  ///< why the stored extents are what they are
  std::vector<std::string> sum_order, rounding_points;
  QuantisedStorage quantised = {};
};

/// What a backend answers before anything exists. Pure functions.
struct BackendTraits {
  std::string_view name, about;
  bool has_targets = false;
  bool eligible_unasked = true;        ///< false: only when wished for by name (test twins)
  /// Why it declines, or nothing. Called per format and finalize form through spec and deployment.
  std::optional<Refusal> (*supports)(const BackendRequest&);
  BackendStorage (*storage)(const BackendRequest&);
  Arithmetic best_level = Arithmetic::exact;   ///< most accurate level that it takes
};

/// What a row on the wire stands for.
enum class RowUnit {
  none,          ///< nothing is dispatched: every rank has all tokens, and all ranks' sums go to all
  whole_batch,   ///< every token to every rank; sums of a rank's experts come back, added in order of rank
  token_rank,    ///< a token once to each rank that it needs; the same
  token_expert,  ///< a token once for each choice; rows of experts come back, added in order of k
};

/// A way to exchange rows between ranks. Two questions tell them apart: what a row stands for, and who multiplies by the routing
/// weight.
struct StrategyTraits {
  std::string_view name, summary;
  RowUnit unit = RowUnit::token_rank;
  /// finalize: on the expert's rank, before the sum. combine: the rank of the token multiplies the rows that come back.
  WeightSite weight_site = WeightSite::finalize;
};

/// How messages get from rank to rank.
struct FabricTraits {
  std::string_view name, summary;
  bool two_sided = false;              ///< a message has a buffer on both ends; else it is stored where its receiver reads it
  bool one_host = false;               ///< ranks share the processors of one machine
};

struct Catalog {
  std::vector<FormatFacts> formats;
  std::vector<BackendTraits> backends; ///< selection order, best first
  std::vector<StrategyTraits> strategies; ///< the same
  std::vector<FabricTraits> fabrics;
  const FormatFacts* format(std::string_view name) const noexcept;
  const FabricTraits* fabric(std::string_view name) const noexcept;   ///< null when there is no such name
};

/// plan() over a given catalog. Pure.
PlanResult plan_with(const LayerSpec& spec, const Deployment& deployment, const Environment& environment, const Catalog& catalog);

}  // namespace motet
