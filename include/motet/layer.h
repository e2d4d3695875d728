// SPDX-License-Identifier: Apache-2.0
// A layer that runs: plan + mapped weights. Creation may throw and is where all work that can be done early is done;
// forward is noexcept, allocates nothing, and returns a RunStatus. One forward at a time per Layer; several Layers may run
// from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motet/checkpoint.h"
#include "motet/executor.h"
#include "motet/group.h"
#include "motet/plan.h"

namespace motet {

// ---------------------------------------------------------------- finalize hooks (docs/hooks.md, L12)

/// One live (token, expert): the hook changes `row` in place and applies the weight itself (identity: row *= weight).
struct HookRow {
  float* row = nullptr;            ///< [width] fp32, true width
  std::int64_t width = 0;
  SlotId slot{};
  ExpertId expert{};
  float weight = 0;
  std::int64_t rank = 0;           ///< whose token it is
  std::int64_t token = 0;          ///< of that rank
  std::int64_t k = 0;              ///< position of the expert in the token's choice
};
using RowHook = void (*)(void* context, const HookRow& row) noexcept;

/// The unfinalized result: GEMM2 rows and where each (token, k) lies in them. With ranks that dispatch, `tokens` are the rows that came,
/// in order of rank and token, and top_k is the choices that each carries: all of its token, or one (ExchangePlan::choices).
struct Unfinalized {
  const float* rows = nullptr;     ///< fp32 [row_count, row_stride], `width` of them valid
  std::int64_t row_count = 0, row_stride = 0, width = 0;
  const std::int32_t* row_of = nullptr;    ///< [tokens, top_k]; -1 = not here
  const std::int32_t* expert = nullptr;    ///< [tokens, top_k]; -1 = absent
  const float* weight = nullptr;           ///< [tokens, top_k]
  std::int64_t tokens = 0, top_k = 0;
};
/// Writes the combined rows, fp32 [tokens, width], to `out` and returns the extent it wrote (checked against the plan).
struct HookExtent { std::int64_t rows = 0, cols = 0; };
using BatchHook = HookExtent (*)(void* context, const Unfinalized& batch, float* out) noexcept;

struct Hooks {
  RowHook row = nullptr;           ///< at most one of row and batch
  BatchHook batch = nullptr;
  void* context = nullptr;         ///< outlives the layer; may be used from several threads at once
};

// ---------------------------------------------------------------- forward

struct ForwardInput {
  ConstMatrix hidden_states;               ///< [tokens, hidden], bf16 | f16 | f32
  ConstMatrix router_logits;               ///< optional f32 [tokens, experts + zero_experts]
  const std::int32_t* top_k_index = nullptr;   ///< optional [tokens, top_k]: given routing, taken as it is
  const float* top_k_weights = nullptr;        ///< with top_k_index: nothing is multiplied onto them
  std::int32_t absent_id = kAbsent;            ///< the id that means "no expert" in top_k_index
  const std::int64_t* token_ids = nullptr;     ///< [tokens], needed for hash routing
};

struct ForwardOutput {
  Matrix output;                           ///< [tokens, hidden], dtype bf16 | f16 | f32; null with finalize = unfinalized
  std::int32_t* top_k_index = nullptr;     ///< optional [tokens, top_k]
  float* top_k_weights = nullptr;          ///< optional [tokens, top_k]
  Unfinalized* unfinalized = nullptr;      ///< filled when the plan's finalize is unfinalized; valid until the next forward
};

/// Seconds of each stage in the last forward, and how its rows fell.
struct ForwardStats {
  double seconds[11] = {};                 ///< indexed by StageId
  double total_seconds = 0;
  std::int64_t tokens = 0, rows = 0, experts_used = 0;
  std::int64_t weight_bytes = 0;           ///< weight bytes that had to be read: distinct ones, again in each chunk
  double flops = 0;                        ///< multiplications and additions of valid elements
};

/// What the last forward exchanged with one rank.
struct PeerStats {
  std::int64_t bytes_sent = 0;
  double seconds_waited = 0;               ///< from the begin of dispatch, and of combine, until its messages had come
};

class Layer {
 public:
  /// Builds a runnable layer: allocates the workspace, prepares the weights, starts the threads.
  /// `executor` outlives the layer, or null for Motet's own pinned pool of plan.threads.
  /// Plans again and takes only an equal plan; what may differ is how it came about (Recipe::wished, choices, estimates).
  /// A plan of several ranks needs a group of as many. Creating is then collective: all ranks throw when one does. `weights` are the
  /// whole layer's; a rank reads its part of them.
  /// Throws Error: hook_mismatch, would_not_fit, wrong_shape (weights are not the plan's), not_supported (a target that this machine
  /// lacks), invalid_argument (no weights, a plan that was changed by hand, an executor with more threads than the plan, a group of
  /// another size), ranks_disagree (naming the field), rank_missing.
  static std::unique_ptr<Layer> create(const Plan& plan, std::shared_ptr<const LayerWeights> weights,
                                       const Hooks& hooks = {}, Executor* executor = nullptr,
                                       std::shared_ptr<Group> group = nullptr);
  virtual ~Layer() = default;
  virtual const Plan& plan() const noexcept = 0;
  /// Asks first whether the mapped files are what they were (file_changed). A file that another program cuts short in the middle of
  /// a forward makes the lost pages fault: the operating system sends SIGBUS, which ends a process that does not handle it.
  /// Tokens run chunk by chunk where the deployment says so; ranks run as many chunks as the one with the most tokens.
  /// With several ranks a forward that fails on one fails on all: rank_missing, step_left, ranks_disagree. The next one is whole again.
  virtual RunStatus forward(const ForwardInput& input, const ForwardOutput& output) noexcept = 0;
  /// In place of the next forward, for a rank that has to stop: the other ranks' ends at once with step_left. Nothing on one rank.
  virtual void leave() noexcept = 0;
  virtual const ForwardStats& stats() const noexcept = 0;
  /// Weight bytes that the last forward read, as spans that do not touch each other; valid while the layer lives. Resident, unless
  /// the system took pages back since: what RateProbe reads to tell the limit of just these bytes.
  virtual std::vector<ByteSpan> weights_read() const = 0;
  /// Rows that each expert got from this rank's part of the last forward: [experts].
  virtual const std::int64_t* expert_load() const noexcept = 0;
  /// [ranks]; null on one rank.
  virtual const PeerStats* peers() const noexcept = 0;
};

}  // namespace motet
