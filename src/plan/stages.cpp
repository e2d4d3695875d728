// SPDX-License-Identifier: Apache-2.0
#include "plan/stages.h"

#include <utility>

#include "plan/quantised.h"

namespace motet {
namespace {

using std::int64_t;

TensorType matrix(const char* name, DType dtype, int64_t rows, int64_t cols) {
  return {.name = name, .dtype = dtype, .valid = {rows, cols}, .stored = {rows, cols}};
}
TensorType padded(const char* name, DType dtype, int64_t rows, const std::pair<int64_t, int64_t>& cols, RowRule rule) {
  return {.name = name, .dtype = dtype, .valid = {rows, cols.first}, .stored = {rows, cols.second}, .rows = rule};
}
TensorType list(const char* name, DType dtype, int64_t count, RowRule rule) {
  return {.name = name, .dtype = dtype, .valid = {count}, .stored = {count}, .layout = Layout::list, .rows = rule};
}

/// Every tensor of the layer, once.
struct Tensors {
  TensorType hidden_states, logits, top_k_index, top_k_weights, counts, row_of, token_of, x, latent_x, permuted, act, rows, partial,
      routed, routed_x, routed_out, shared_act, shared_out, output;
};

Tensors make_tensors(const Draft& draft) {
  const LayerSpec& spec = draft.spec;
  const BackendStorage& storage = draft.storage;
  const DType act = storage.activation;
  const int64_t tokens = draft.tokens, rows = draft.rows(), width = spec.dispatch_width();
  return {
      .hidden_states = matrix("hidden_states", draft.deployment.input, tokens, spec.hidden),
      .logits = matrix("logits", DType::f32, tokens, draft.scored()),
      .top_k_index = matrix("top_k_index", DType::i32, tokens, spec.top_k),
      .top_k_weights = matrix("top_k_weights", DType::f32, tokens, spec.top_k),
      .counts = list("counts", DType::i64, draft.share.experts + 1, RowRule::all_valid),
      .row_of = matrix("row_of", DType::i32, draft.mapped(), draft.choices()),
      .token_of = list("token_of", DType::i32, rows, RowRule::up_to_count),
      .x = padded("x", act, tokens, {spec.hidden, storage.hidden}, RowRule::all_valid),
      .latent_x = matrix("latent_x", DType::f32, tokens, spec.latent),
      .permuted = padded("permuted", act, rows, {width, draft.stored_dispatch()}, RowRule::up_to_count),
      .act = padded("act", act, rows, {draft.share.intermediate, storage.intermediate}, RowRule::up_to_count),
      .rows = padded("rows", DType::f32, rows, {width, storage.rows_width}, RowRule::up_to_count),
      .partial = matrix("partial", DType::f32, draft.mapped(), width),
      .routed = matrix("routed", DType::f32, tokens, width),
      .routed_x = padded("routed_x", act, tokens, {spec.latent, storage.latent}, RowRule::all_valid),
      .routed_out = matrix("routed_out", DType::f32, tokens, spec.hidden),
      .shared_act = padded("shared_act", act, tokens, {draft.share.shared, storage.shared_intermediate}, RowRule::all_valid),
      .shared_out = matrix("shared_out", DType::f32, tokens, spec.hidden),
      .output = matrix("output", draft.deployment.input, tokens, spec.hidden),
  };
}

struct Part {
  StageId id;
  const char* who;
};

void append(std::vector<Stage>& stages, const Part& part, std::vector<TensorType> in, std::vector<TensorType> out) {
  stages.push_back(
      {.id = part.id, .name = std::string(name_of(part.id)), .who = part.who, .in = std::move(in), .out = std::move(out)});
}

void append_tail(std::vector<Stage>& stages, const Draft& draft, const Tensors& t) {
  std::vector<TensorType> in{t.routed}, out;
  if (draft.has_shared()) in.push_back(t.shared_out);
  if (draft.adds_zero_experts() || (draft.has_shared() && draft.spec.shared.gate)) in.push_back(t.hidden_states);
  if (draft.adds_zero_experts()) in.insert(in.end(), {t.top_k_index, t.top_k_weights});
  if (draft.has_latent()) out.insert(out.end(), {t.routed_x, t.routed_out});
  out.push_back(t.output);
  append(stages, {StageId::tail, "runtime"}, std::move(in), std::move(out));
}

}  // namespace

std::vector<Stage> make_stages(const Draft& draft) {
  const Tensors t = make_tensors(draft);
  const bool latent = draft.has_latent(), shared = draft.has_shared();
  std::vector<Stage> stages;
  stages.reserve(11);
  append(stages, {StageId::input, "caller"}, {}, {t.hidden_states});
  if (shared) append(stages, {StageId::shared, "backend"}, {t.hidden_states}, {t.x, t.shared_act, t.shared_out});
  append(stages, {StageId::route, "routing"}, {t.hidden_states}, {t.logits, t.top_k_index, t.top_k_weights});
  if (!draft.dispatches()) append(stages, {StageId::map, "runtime"}, {t.top_k_index}, {t.counts, t.row_of, t.token_of});
  if (latent && shared) append(stages, {StageId::latent_in, "backend"}, {t.x}, {t.latent_x});
  if (latent && !shared) append(stages, {StageId::latent_in, "backend"}, {t.hidden_states}, {t.x, t.latent_x});
  const TensorType& experts_read = latent ? t.latent_x : t.hidden_states;
  if (draft.dispatches()) {  // rows that come are mapped and prepared here
    append(stages, {StageId::dispatch, "strategy"}, {experts_read, t.top_k_index, t.top_k_weights},
           {t.counts, t.row_of, t.token_of, t.permuted});
  } else {
    std::vector<TensorType> prepared_from{experts_read, t.token_of};
    if (draft.weight_on_input()) prepared_from.insert(prepared_from.end(), {t.row_of, t.top_k_weights});
    append(stages, {StageId::prepare, "backend"}, std::move(prepared_from), {t.permuted});
  }
  std::vector<TensorType> made{t.act, t.rows};
  for (QuantisedTensor& tensor : quantised_tensors(draft)) made.push_back(std::move(tensor.type));
  append(stages, {StageId::experts, "backend"}, {t.permuted, t.counts}, std::move(made));
  if (draft.unfinalized()) {
    append(stages, {StageId::finalize, "caller"}, {t.rows, t.row_of, t.top_k_index, t.top_k_weights}, {});
    return stages;
  }
  std::vector<TensorType> finalized_from{t.rows, t.row_of};
  if (!draft.weight_on_input() && !draft.dispatches()) finalized_from.push_back(t.top_k_weights);
  if (draft.deployment.wishes.finalize == Finalize::hook && !draft.dispatches())
    finalized_from.insert(finalized_from.end(), {t.top_k_index, t.token_of});
  append(stages, {StageId::finalize, draft.deployment.wishes.finalize == Finalize::hook ? "hook" : "runtime"},
         std::move(finalized_from), {draft.dispatches() ? t.partial : t.routed});
  if (draft.dispatches()) append(stages, {StageId::combine, "strategy"}, {t.partial, t.top_k_weights}, {t.routed});
  append_tail(stages, draft, t);
  return stages;
}

}  // namespace motet
