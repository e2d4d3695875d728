// SPDX-License-Identifier: Apache-2.0
// The plan: every width, layout, byte and refusal of one layer, settled before the first token.
//
// plan() is pure: it allocates no buffers, reads no files, talks to nobody, and answers the same on every rank. A Plan is a
// plain value: compare it, hash it (fingerprint), print it (to_text), serialise it (to_json). Layer::create takes it
// as it is; forward follows it and decides nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motet/error.h"
#include "motet/spec.h"

namespace motet {

// ---------------------------------------------------------------- widths (L1, L4)

/// Logical axes that have an owner.
enum class Axis { hidden, latent, gate, up, down_in, down_out, shared, scale_rows, scale_cols, tokens };

/// The valid and stored extent of one axis, who asked for the difference, and why.
struct Width {
  Axis axis = Axis::hidden;
  std::int64_t valid = 0;
  std::int64_t stored = 0;         ///< >= valid; the difference is padding
  std::string owner;               ///< who asked for it: model, caller, a format, a backend
  std::string reason;
  bool operator==(const Width&) const = default;
};

// ---------------------------------------------------------------- stages (docs/architecture.md, life of a token)

/// What rows of a tensor hold.
enum class RowRule { all_valid, up_to_count, by_index };
/// How elements lie (L6). Only a named function converts one into another.
enum class Layout { row_major, linear_scales, flat_scales, swizzled_128x4, column_major, scalar, list };

struct TensorType {
  std::string name;                ///< such as "x", "logits", "rows"
  DType dtype = DType::f32;
  std::vector<std::int64_t> valid;
  std::vector<std::int64_t> stored;
  Layout layout = Layout::row_major;
  RowRule rows = RowRule::all_valid;
  bool operator==(const TensorType&) const = default;
};

/// Stages of a token's life (docs/architecture.md), numbered in their order.
enum class StageId : int { input = 0, shared = 1, route = 2, map = 3, latent_in = 4, prepare = 5, dispatch = 6, experts = 7, finalize = 8, combine = 9, tail = 10 };

struct Stage {
  StageId id = StageId::input;
  std::string name;
  std::string who;                 ///< caller, runtime, routing, backend, strategy, hook
  std::vector<TensorType> in, out;
  bool operator==(const Stage&) const = default;
};

// ---------------------------------------------------------------- the tail (L5)

enum class TailOp { truncate, reduce, scale, latent_norm, latent_out, add_shared, add_zero_experts, round };

/// One step of the tail, with the state it needs and leaves. Each op at most once.
struct TailStep {
  TailOp op = TailOp::round;
  std::int64_t width_in = 0, width_out = 0;
  bool reduced_in = true, reduced_out = true;
  bool scaled_in = true, scaled_out = true;
  bool operator==(const TailStep&) const = default;
};

// ---------------------------------------------------------------- numbers (L14, L15)

struct Recipe {
  Arithmetic wished = Arithmetic::bf16;
  std::string arithmetic;          ///< kernel arithmetic taken: "double", "f32", "bf16_dot"
  DType activation = DType::f32;   ///< element type of prepared activations and intermediates
  DType accumulator = DType::f32;
  DType wire = DType::f32;         ///< element type between ranks; one rank sends nothing
  WeightSite weight_site = WeightSite::finalize;
  std::vector<std::string> sum_order;        ///< one sentence per sum
  std::vector<std::string> rounding_points;  ///< every place where a value is rounded
  double error_bound = 0;          ///< promised relative L2 error of the level, before the output is rounded to its dtype
  bool operator==(const Recipe&) const = default;
};

// ---------------------------------------------------------------- workspace (L16)

/// Named scratch areas. Which exist, and how large, is the plan's answer.
enum class AreaId : int {
  logits,        ///< f32 [tokens, experts + zero_experts]
  top_k_index,   ///< i32 [tokens, top_k]
  top_k_weights, ///< f32 [tokens, top_k]
  counts,        ///< i64 [slots + 1]: first row of each slot (prefix sums), then the row total
  row_of,        ///< i32 [tokens, top_k]: row of the permuted batch, -1 = not here
  token_of,      ///< i32 [tokens * top_k]: token of a row
  x,             ///< activation type [tokens, stored hidden]: prepared hidden states (shared expert, latent_in)
  latent_x,      ///< f32 [tokens, latent]
  permuted,      ///< activation type [rows, stored dispatch width]
  act,           ///< activation type [rows, stored intermediate]
  permuted_codes,  ///< codes of `permuted` where the backend quantises it: [rows, stored dispatch width]
  permuted_scales, ///< their scales, in the backend's layout
  act_codes,     ///< codes of `act`: [rows, stored intermediate]
  act_scales,    ///< their scales, in the backend's layout
  linear_scales, ///< scales [rows, groups] as encoders write them, before they are put into another layout
  rows,          ///< f32 [rows, stored dispatch width]: GEMM2 rows
  partial,       ///< f32 [received rows, dispatch width]: this rank's sums for the tokens of others
  routed,        ///< f32 [tokens, dispatch width]
  routed_x,      ///< activation type [tokens, stored latent]: routed sum prepared for latent_out
  routed_out,    ///< f32 [tokens, hidden]: after latent_out
  shared_act,    ///< activation type [tokens, stored shared intermediate]
  shared_out,    ///< f32 [tokens, hidden]
  scratch,       ///< bytes [threads, scratch per thread]: slabs and tiles
};

struct Area {
  AreaId id = AreaId::logits;
  std::int64_t offset = 0;         ///< bytes from the start of the workspace
  std::int64_t bytes = 0;
  std::int64_t alignment = 64;
  StageId first = StageId::input;  ///< live from the start of this stage ...
  StageId last = StageId::tail;    ///< ... to the end of this one
  bool operator==(const Area&) const = default;
};

struct Workspace {
  std::int64_t bytes = 0;
  std::vector<Area> areas;
  bool operator==(const Workspace&) const = default;
};

// ---------------------------------------------------------------- choices (L11)

enum class Verdict { chosen, eligible, refused };

/// Why something was declined: a stable code, the rule, what was given, what would have been needed.
struct Refusal {
  std::string code;                ///< such as "arithmetic_not_built"
  std::string rule;
  std::string given;
  std::string needed;
  bool operator==(const Refusal&) const = default;
};

struct Choice {
  std::string kind;                ///< backend, target, arithmetic, residence, threads, strategy, wire, scheduler, finalize
  std::string name;
  Verdict verdict = Verdict::eligible;
  std::string reason{};            ///< why chosen or merely eligible
  std::optional<Refusal> refusal{};   ///< when refused
  bool substituted = false;        ///< chosen in place of a refused wish
  bool operator==(const Choice&) const = default;
};

// ---------------------------------------------------------------- ranks

/// What one rank holds. Indexed by rank = ep_rank * tp + tp_rank.
struct RankSlice {
  std::int64_t rank = 0, ep_rank = 0, tp_rank = 0;
  std::int64_t expert_begin = 0, expert_count = 0;
  std::int64_t intermediate_begin = 0;     ///< in valid elements, the same for the gate half, the up half and down's input
  std::int64_t intermediate_valid = 0;
  std::int64_t intermediate_stored = 0;
  std::int64_t shared_begin = 0, shared_valid = 0;   ///< slice of the shared expert's intermediate
  bool down_bias = true;           ///< exactly one tp rank of each expert adds it
  bool shared_bias = true;         ///< of the shared expert's down: every rank that has it whole, or rank 0
  std::string reason;              ///< such as "90 units of 32: 23 + 23 + 22 + 22"
  bool operator==(const RankSlice&) const = default;
};

// ---------------------------------------------------------------- exchange

/// What ranks hand each other in one forward (docs/exchange.md); all zero on one rank.
struct ExchangePlan {
  std::int64_t row_bytes = 0;      ///< hidden states of one dispatched row, as they are given to experts
  std::int64_t choices = 0;        ///< pairs of slot and routing weight that a dispatched row carries
  std::int64_t rows_to_rank = 0;   ///< most rows from one rank to another
  std::int64_t rows = 0;           ///< most rows that one rank receives
  std::int64_t width = 0;          ///< elements of a row that comes back
  std::int64_t dispatch_bytes = 0, combine_bytes = 0;   ///< longest message of each phase
  std::int64_t mailboxes = 0;      ///< bytes of one rank: messages that others write for it, two steps deep
  std::int64_t handles = 0;        ///< bytes of one rank: which row came from whom
  bool operator==(const ExchangePlan&) const = default;
};

// ---------------------------------------------------------------- memory

enum class Fit { fits, does_not_fit, would_fit };

/// Bytes of one rank. `anonymous` is what the process allocates for this layer (within 5 % or 8 MiB); mapped is an upper bound.
struct MemoryPlan {
  std::int64_t workspace = 0;
  std::int64_t exchange = 0;       ///< several ranks: mailboxes and handles
  std::int64_t prepared = 0;       ///< what the backend allocates at creation: biases as fp32, its own tables
  std::int64_t packed = 0;         ///< residence packed: weights laid out anew, in huge pages where the system gives them
  std::int64_t packed_padding = 0; ///< of them, bytes that the file does not have
  std::int64_t anonymous = 0;      ///< workspace + exchange + prepared + packed
  std::int64_t mapped = 0;         ///< weight bytes of this layer that may become resident; repacked ones are dropped expert by expert
  std::int64_t peak = 0;           ///< anonymous + mapped
  std::int64_t limit = 0;
  Fit fit = Fit::fits;
  std::string advice;              ///< "would with --chunk-tokens 512" and the like
  bool operator==(const MemoryPlan&) const = default;
};

// ---------------------------------------------------------------- estimates

/// Outside equality and fingerprint: what measured rates say.
struct Estimates {
  std::int64_t weight_bytes_per_token = 0;       ///< distinct weight bytes that one token reads; vectors counted as BF16
  std::int64_t parameters_active = 0, parameters_total = 0;   ///< elements of matrices: no biases, no scales
  double pack_seconds = 0;                       ///< residence packed: time that creation takes longer
  std::string note;
  bool operator==(const Estimates&) const { return true; }
};

/// Shape, stride and dtype of a forward result; the one shape function for fake and real results (L3).
struct OutputType {
  DType dtype = DType::bf16;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0, col_stride = 1;   ///< elements
  bool operator==(const OutputType&) const = default;
};

struct Plan {
  LayerSpec spec;
  Deployment deployment;           ///< as planned: in place of a substituted wish it holds what was taken
  Environment environment;
  std::string backend, target, strategy, scheduler;   ///< strategy is "none" on one rank
  int threads = 1;
  std::vector<Width> widths;
  std::vector<Stage> stages;
  std::vector<TailStep> tail;
  Recipe recipe;
  Workspace workspace;
  ExchangePlan exchange;
  std::vector<Choice> choices;
  std::vector<RankSlice> ranks;
  MemoryPlan memory;
  Estimates estimates;
  std::string fingerprint;         ///< 32 hexadecimal digits over all that must be equal on all ranks
  bool operator==(const Plan&) const = default;

  /// The width of an axis; null when the layer has no such axis.
  const Width* width(Axis axis) const noexcept;
  std::int64_t stored(Axis axis) const noexcept;     ///< 0 when there is no such axis
  const Area* area(AreaId id) const noexcept;        ///< null when the layer needs none
  /// Most rows of the permuted batch: tokens at once * top_k on one rank, what this rank's experts may get from all on several.
  std::int64_t max_rows() const noexcept;
  /// What forward returns for this many tokens, 0 included. Fake operators and the real path both call it.
  OutputType output(std::int64_t tokens) const noexcept;

  std::string to_json(int indent = 2) const;         ///< schema "motet.plan/1"
  std::string to_text() const;                       ///< tables for a terminal, no colour, 100 columns
};

/// A plan, or every refusal that stands against it (never empty then). A plan that does not fit in memory is a plan, so that it can be
/// printed: memory.fit says so, and value() and Layer::create throw would_not_fit. `choices` is empty when spec or deployment are
/// themselves wrong: then nobody was asked.
struct PlanResult {
  std::optional<Plan> plan;
  std::vector<Refusal> refusals;
  std::vector<Choice> choices;     ///< the whole choice report, also when refused

  /// The plan, or throws Error(not_supported | would_not_fit | invalid_argument) with all refusals in one text.
  const Plan& value() const;
};

/// Plans one layer. Pure; safe from any thread. Never throws for what spec, deployment or environment say: that is a refusal.
PlanResult plan(const LayerSpec& spec, const Deployment& deployment, const Environment& environment);

/// Names for printing: the enumerator as written, e.g. name_of(Axis::down_in) == "down_in".
std::string_view name_of(Axis) noexcept;
std::string_view name_of(StageId) noexcept;
std::string_view name_of(TailOp) noexcept;
std::string_view name_of(AreaId) noexcept;
std::string_view name_of(Verdict) noexcept;
std::string_view name_of(Layout) noexcept;
std::string_view name_of(Fit) noexcept;
std::string_view name_of(Arithmetic) noexcept;
std::string_view name_of(Residence) noexcept;
std::string_view name_of(Finalize) noexcept;
std::string_view name_of(TokenPlacement) noexcept;
std::string_view name_of(WeightSite) noexcept;
std::string_view name_of(ActivationKind) noexcept;
std::string_view name_of(RouterScore) noexcept;

}  // namespace motet
