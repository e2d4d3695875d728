// SPDX-License-Identifier: Apache-2.0
// A way to run experts. One file src/backends/NAME.cpp and one line in backends.inc.
// A backend never routes: it gets rows sorted by local slot, with counts. It computes with what the plan says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/layer_weights.h"
#include "motet/executor.h"
#include "plan/catalog.h"

namespace motet {

/// One operand that a backend quantises; null where BackendStorage::quantised says nothing of it.
struct QuantisedArea {
  std::byte* codes = nullptr;   ///< [rows, stored width]
  std::byte* scales = nullptr;  ///< in the layout of BackendStorage::quantised
};

/// Rows of one feed-forward, sorted by slot. Rows at or past first_row[slots] are never read or written (L8).
struct ExpertBatch {
  const std::byte* x = nullptr;             ///< prepared activations, row r at x + r * x_stride
  std::int64_t x_stride = 0;                ///< bytes
  const std::int64_t* first_row = nullptr;  ///< [slots + 1] prefix sums
  std::int64_t slots = 0;
  std::byte* act = nullptr;  ///< [rows, stored intermediate] activation type, row stride in bytes
  std::int64_t act_stride = 0;
  float* rows = nullptr;         ///< [rows, rows_stride] fp32 result; bias added, no routing weight
  std::int64_t rows_stride = 0;  ///< elements
  std::byte* scratch = nullptr;  ///< thread t uses scratch + t * scratch_stride
  std::int64_t scratch_stride = 0;
  QuantisedArea quantised_x = {}, quantised_act = {};  ///< of the routed experts
  std::byte* linear_scales = nullptr;  ///< [rows, most groups of the two]; null where linear scales need no place of their own
};

/// y = W x for one latent projection: fixed order whatever the number of tokens.
struct DenseBatch {
  const std::byte* x = nullptr;
  std::int64_t x_stride = 0;  ///< bytes
  std::int64_t tokens = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;  ///< elements
  std::byte* scratch = nullptr;
  std::int64_t scratch_stride = 0;
};

/// A backend with its weights, made at Layer::create. All run functions are noexcept and allocate nothing.
class PreparedBackend {
 public:
  virtual ~PreparedBackend() = default;
  /// Bytes that preparing allocated; the plan's `prepared`.
  virtual std::int64_t prepared_bytes() const noexcept = 0;
  /// Memory that experts are read from in place of the weights given (residence packed); empty when they are used as they lie.
  virtual ByteSpan packed_weights() const noexcept { return {}; }
  /// Converts caller data to the activation type, zero-padded to `stored` elements: result rows first .. first + count - 1.
  /// `index`, `scale` and `out` are those of the whole batch: result row r lies at out + r * out_stride (bytes) and comes from
  /// source row index[r] (r itself when `index` is null); scale[r] multiplies it in fp32 before rounding (input weighting).
  virtual void prepare_rows(const ConstMatrix& source, const std::int32_t* index, const float* scale, std::int64_t first,
                            std::int64_t count, std::byte* out, std::int64_t out_stride, std::int64_t stored) const noexcept = 0;
  /// logits[t, e] = router[e, :] . hidden_states[t, :], fp32 accumulation (double in `reference`) from the values as given, in an
  /// order that is the same for every number of tokens. No bias.
  virtual void run_router(const ConstMatrix& hidden_states, float* logits, std::int64_t logits_stride, std::byte* scratch,
                          std::int64_t scratch_stride, Executor& executor) noexcept = 0;
  /// Routed experts: GEMM1, activation, requantise, GEMM2. Fills batch.rows for all live rows.
  virtual void run_experts(const ExpertBatch& batch, Executor& executor) noexcept = 0;
  /// The shared expert on all tokens: as one slot. Its gate is the runtime's.
  virtual void run_shared(const ExpertBatch& batch, Executor& executor) noexcept = 0;
  virtual void run_latent_in(const DenseBatch& batch, Executor& executor) noexcept = 0;
  virtual void run_latent_out(const DenseBatch& batch, Executor& executor) noexcept = 0;
};

struct Backend {
  BackendTraits traits;
  /// Prepares one rank's weights (spec_of_rank) as the plan says. Throws Error.
  /// `executor` runs what preparing can do in parallel; it is kept by nobody.
  std::unique_ptr<PreparedBackend> (*prepare)(const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights,
                                              Executor& executor);
};

/// In the order of backends.inc, best first.
const std::vector<const Backend*>& all_backends();
const Backend* find_backend(std::string_view name) noexcept;

}  // namespace motet
