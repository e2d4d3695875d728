// SPDX-License-Identifier: Apache-2.0
// Every field of the plan's values, listed once: the JSON and the fingerprint are visitors over these lists.
// The structured bindings make a field that is added to a struct, but not here, a compile error.
#pragma once

#include "motet/plan.h"

namespace motet {

template <class Visitor>
void visit_fields(Visitor& v, const Activation& value) {
  const auto& [kind, gated, alpha, limit, offset] = value;
  v("kind", kind), v("gated", gated), v("alpha", alpha), v("limit", limit), v("offset", offset);
}

template <class Visitor>
void visit_fields(Visitor& v, const RouterSpec& value) {
  const auto& [score, selection, logit_bias, selection_bias, groups, groups_kept, group_score, normalize, normalize_epsilon,
               normalize_floor, normalize_power, scale, scale_site, weight_site, sigmoid_weight, soft_cap, jitter, per_expert_scale,
               zero_experts, zero_expert_kind, weight_dtype] = value;
  v("score", score), v("selection", selection), v("logit_bias", logit_bias), v("selection_bias", selection_bias);
  v("groups", groups), v("groups_kept", groups_kept), v("group_score", group_score);
  v("normalize", normalize), v("normalize_epsilon", normalize_epsilon), v("normalize_floor", normalize_floor);
  v("normalize_power", normalize_power), v("scale", scale), v("scale_site", scale_site), v("weight_site", weight_site);
  v("sigmoid_weight", sigmoid_weight), v("soft_cap", soft_cap), v("jitter", jitter), v("per_expert_scale", per_expert_scale);
  v("zero_experts", zero_experts), v("zero_expert_kind", zero_expert_kind), v("weight_dtype", weight_dtype);
}

template <class Visitor>
void visit_fields(Visitor& v, const ProjectionSpec& value) {
  const auto& [format, block_rows, block_cols, transposed, bias] = value;
  v("format", format), v("block_rows", block_rows), v("block_cols", block_cols), v("transposed", transposed), v("bias", bias);
}

template <class Visitor>
void visit_fields(Visitor& v, const SharedExpertSpec& value) {
  const auto& [intermediate, gate, activation, gate_up_order, gate_up, down] = value;
  v("intermediate", intermediate), v("gate", gate), v("activation", activation), v("gate_up_order", gate_up_order);
  v("gate_up", gate_up), v("down", down);
}

template <class Visitor>
void visit_fields(Visitor& v, const LayerSpec& value) {
  const auto& [family, layer, hidden, latent, intermediate, experts, top_k, activation, gate_up_order, gate_up, down, router,
               shared, latent_in, latent_out, latent_norm, latent_norm_epsilon] = value;
  v("family", family), v("layer", layer), v("hidden", hidden), v("latent", latent), v("intermediate", intermediate);
  v("experts", experts), v("top_k", top_k), v("activation", activation), v("gate_up_order", gate_up_order);
  v("gate_up", gate_up), v("down", down), v("router", router), v("shared", shared);
  v("latent_in", latent_in), v("latent_out", latent_out), v("latent_norm", latent_norm);
  v("latent_norm_epsilon", latent_norm_epsilon);
}

template <class Visitor>
void visit_fields(Visitor& v, const Wishes& value) {
  const auto& [backend, target, strategy, wire, arithmetic, invariant, residence, threads, finalize, allow_substitution] = value;
  v("backend", backend), v("target", target), v("strategy", strategy), v("wire", wire);
  v("arithmetic", arithmetic), v("invariant", invariant), v("residence", residence);
  v("threads", threads), v("finalize", finalize), v("allow_substitution", allow_substitution);
}

template <class Visitor>
void visit_fields(Visitor& v, const Deployment& value) {
  const auto& [tokens, chunk_tokens, tp, ep, placement, fabric, input, memory_limit, wishes] = value;
  v("tokens", tokens), v("chunk_tokens", chunk_tokens), v("tp", tp), v("ep", ep), v("placement", placement), v("fabric", fabric), v("input", input), v("memory_limit", memory_limit), v("wishes", wishes);
}

template <class Visitor>
void visit_fields(Visitor& v, const TargetFacts& value) {
  const auto& [name, compiled, usable, reason] = value;
  v("name", name), v("compiled", compiled), v("usable", usable), v("reason", reason);
}

template <class Visitor>
void visit_fields(Visitor& v, const Environment& value) {
  const auto& [version, processor, targets, arithmetic_ranking, few_ranking, ranking_evidence, threads, threads_reason, memory_bytes, page_bytes,
               numa_nodes] = value;
  v("version", version), v("processor", processor), v("targets", targets), v("arithmetic_ranking", arithmetic_ranking);
  v("few_ranking", few_ranking);
  v("ranking_evidence", ranking_evidence), v("threads", threads), v("threads_reason", threads_reason);
  v("memory_bytes", memory_bytes), v("page_bytes", page_bytes), v("numa_nodes", numa_nodes);
}

template <class Visitor>
void visit_fields(Visitor& v, const Width& value) {
  const auto& [axis, valid, stored, owner, reason] = value;
  v("axis", axis), v("valid", valid), v("stored", stored), v("owner", owner), v("reason", reason);
}

template <class Visitor>
void visit_fields(Visitor& v, const TensorType& value) {
  const auto& [name, dtype, valid, stored, layout, rows] = value;
  v("name", name), v("dtype", dtype), v("valid", valid), v("stored", stored), v("layout", layout), v("rows", rows);
}

template <class Visitor>
void visit_fields(Visitor& v, const Stage& value) {
  const auto& [id, name, who, in, out] = value;
  v("id", static_cast<std::int64_t>(id)), v("name", name), v("who", who), v("in", in), v("out", out);
}

template <class Visitor>
void visit_fields(Visitor& v, const TailStep& value) {
  const auto& [op, width_in, width_out, reduced_in, reduced_out, scaled_in, scaled_out] = value;
  v("op", op), v("width_in", width_in), v("width_out", width_out), v("reduced_in", reduced_in), v("reduced_out", reduced_out);
  v("scaled_in", scaled_in), v("scaled_out", scaled_out);
}

template <class Visitor>
void visit_fields(Visitor& v, const Recipe& value) {
  const auto& [wished, arithmetic, activation, accumulator, wire, weight_site, sum_order, rounding_points, error_bound] = value;
  v("wished", wished), v("arithmetic", arithmetic), v("activation", activation), v("accumulator", accumulator), v("wire", wire);
  v("weight_site", weight_site), v("sum_order", sum_order), v("rounding_points", rounding_points), v("error_bound", error_bound);
}

template <class Visitor>
void visit_fields(Visitor& v, const Area& value) {
  const auto& [id, offset, bytes, alignment, first, last] = value;
  v("id", id), v("offset", offset), v("bytes", bytes), v("alignment", alignment), v("first", first), v("last", last);
}

template <class Visitor>
void visit_fields(Visitor& v, const Workspace& value) {
  const auto& [bytes, areas] = value;
  v("bytes", bytes), v("areas", areas);
}

template <class Visitor>
void visit_fields(Visitor& v, const Refusal& value) {
  const auto& [code, rule, given, needed] = value;
  v("code", code), v("rule", rule), v("given", given), v("needed", needed);
}

template <class Visitor>
void visit_fields(Visitor& v, const Choice& value) {
  const auto& [kind, name, verdict, reason, refusal, substituted] = value;
  v("kind", kind), v("name", name), v("verdict", verdict), v("reason", reason), v("refusal", refusal),
      v("substituted", substituted);
}

template <class Visitor>
void visit_fields(Visitor& v, const RankSlice& value) {
  const auto& [rank, ep_rank, tp_rank, expert_begin, expert_count, intermediate_begin, intermediate_valid, intermediate_stored,
               shared_begin, shared_valid, down_bias, shared_bias, reason] = value;
  v("rank", rank), v("ep_rank", ep_rank), v("tp_rank", tp_rank), v("expert_begin", expert_begin), v("expert_count", expert_count);
  v("intermediate_begin", intermediate_begin), v("intermediate_valid", intermediate_valid),
      v("intermediate_stored", intermediate_stored);
  v("shared_begin", shared_begin), v("shared_valid", shared_valid), v("down_bias", down_bias);
  v("shared_bias", shared_bias), v("reason", reason);
}

template <class Visitor>
void visit_fields(Visitor& v, const ExchangePlan& value) {
  const auto& [row_bytes, choices, rows_to_rank, rows, width, dispatch_bytes, combine_bytes, mailboxes, handles] = value;
  v("row_bytes", row_bytes), v("choices", choices), v("rows_to_rank", rows_to_rank), v("rows", rows), v("width", width);
  v("dispatch_bytes", dispatch_bytes), v("combine_bytes", combine_bytes), v("mailboxes", mailboxes), v("handles", handles);
}

template <class Visitor>
void visit_fields(Visitor& v, const MemoryPlan& value) {
  const auto& [workspace, exchange, prepared, packed, packed_padding, anonymous, mapped, peak, limit, fit, advice] = value;
  v("workspace", workspace), v("exchange", exchange), v("prepared", prepared), v("packed", packed), v("packed_padding", packed_padding);
  v("anonymous", anonymous), v("mapped", mapped), v("peak", peak);
  v("limit", limit), v("fit", fit), v("advice", advice);
}

template <class Visitor>
void visit_fields(Visitor& v, const Estimates& value) {
  const auto& [weight_bytes_per_token, parameters_active, parameters_total, pack_seconds, note] = value;
  v("weight_bytes_per_token", weight_bytes_per_token), v("parameters_active", parameters_active);
  v("parameters_total", parameters_total), v("pack_seconds", pack_seconds), v("note", note);
}

/// What must be equal on all ranks. Left out: estimates; what may differ between hosts without changing a byte of an exchange or a
/// bit of a result (threads and the scratch they need, memory and its limit, pages, the wording of choices); and the fingerprint
/// itself.
template <class Visitor>
void visit_agreed_fields(Visitor& v, const Plan& plan) {
  v("version", plan.environment.version), v("arithmetic_ranking", plan.environment.arithmetic_ranking);
  v("few_ranking", plan.environment.few_ranking);
  Deployment deployment = plan.deployment;
  deployment.wishes.threads = 0;
  deployment.memory_limit = 0;
  v("spec", plan.spec), v("deployment", deployment);
  v("backend", plan.backend), v("target", plan.target), v("strategy", plan.strategy), v("scheduler", plan.scheduler);
  v("widths", plan.widths), v("stages", plan.stages), v("tail", plan.tail), v("recipe", plan.recipe);
  v("exchange", plan.exchange), v("ranks", plan.ranks);
}

template <class Visitor>
void visit_fields(Visitor& v, const Plan& value) {
  const auto& [spec, deployment, environment, backend, target, strategy, scheduler, threads, widths, stages, tail, recipe,
               workspace, exchange, choices, ranks, memory, estimates, fingerprint] = value;
  v("spec", spec), v("deployment", deployment), v("environment", environment);
  v("backend", backend), v("target", target), v("strategy", strategy), v("scheduler", scheduler), v("threads", threads);
  v("widths", widths), v("stages", stages), v("tail", tail), v("recipe", recipe), v("workspace", workspace), v("exchange", exchange);
  v("choices", choices);
  v("ranks", ranks), v("memory", memory), v("estimates", estimates), v("fingerprint", fingerprint);
}

}  // namespace motet
