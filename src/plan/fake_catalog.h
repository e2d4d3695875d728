// SPDX-License-Identifier: Apache-2.0
// For tests of planning: formats and backends as data. Three backends differ in what they store (2880 as 2880, 3072 and 2944).
#pragma once

#include <algorithm>

#include "base/math.h"
#include "plan/catalog.h"

namespace motet::fake {

inline std::optional<Refusal> anything(const BackendRequest& request) {
  if (request.deployment.wishes.residence == Residence::packed)
    return Refusal{"residence_not_built", "this backend reads published bytes", "packed", "mapped"};
  return std::nullopt;
}
inline std::optional<Refusal> no_formats_but_bf16_mxfp4(const BackendRequest& request) {
  if (request.spec.gate_up.format == "nvfp4")
    return Refusal{"format_not_built", "this backend has kernels for other formats", "nvfp4", "bf16 or mxfp4"};
  return anything(request);
}
inline std::optional<Refusal> finalized_only(const BackendRequest& request) {
  if (request.deployment.wishes.finalize != Finalize::builtin)
    return Refusal{"finalize_not_built", "this backend sums its rows itself",
                   std::string(name_of(request.deployment.wishes.finalize)), "builtin"};
  return std::nullopt;
}

/// Stores every axis in multiples of `unit`, each half on its own.
template <std::int64_t unit>
BackendStorage storage(const BackendRequest& request) {
  const auto up = [](std::int64_t valid) { return valid == 0 ? 0 : round_up(valid, unit); };
  BackendStorage out;
  out.hidden = up(request.spec.hidden);
  out.latent = up(request.spec.latent);
  out.intermediate = out.up = up(request.intermediate_valid);
  out.gate = request.spec.activation.gated ? out.up : 0;
  out.shared_intermediate = up(request.shared_intermediate_valid);
  out.rows_width = up(request.spec.dispatch_width());
  out.activation = DType::bf16;
  out.scratch_per_thread = 1000;
  out.prepared = 4096;
  out.arithmetic = request.deployment.wishes.arithmetic == Arithmetic::exact ? "f32" : "bf16_dot";
  out.reason = "multiples of " + std::to_string(unit);
  out.sum_order = {"experts: k ascending"};
  out.rounding_points = {"activations: once to BF16"};
  return out;
}

inline Catalog catalog() {
  Catalog catalog;
  catalog.formats = {{.name = "bf16", .about = "", .bits_per_value = 16, .values_per_block = 1, .bytes_per_block = 2},
                     {.name = "fp8_block",
                      .about = "",
                      .bits_per_value = 8,
                      .values_per_block = 1,
                      .bytes_per_block = 1,
                      .scale_bytes = 4,
                      .block_rows = 128,
                      .block_cols = 128},
                     {.name = "mxfp4",
                      .about = "",
                      .bits_per_value = 4,
                      .values_per_block = 32,
                      .bytes_per_block = 16,
                      .scale_bytes = 1,
                      .block_rows = 1,
                      .block_cols = 32},
                     {.name = "nvfp4",
                      .about = "",
                      .bits_per_value = 4,
                      .values_per_block = 16,
                      .bytes_per_block = 8,
                      .scale_bytes = 1,
                      .block_rows = 1,
                      .block_cols = 16}};
  catalog.backends = {{"narrow", "stores what is valid", true, true, no_formats_but_bf16_mxfp4, storage<1>},
                      {"wide", "multiples of 256", false, true, anything, storage<256>},
                      {"aligned", "multiples of 128", false, false, anything, storage<128>},
                      {"finalized", "sums its rows itself", false, false, finalized_only, storage<1>}};
  catalog.strategies = {{"by_rank", "", RowUnit::token_rank, WeightSite::finalize},
                        {"by_choice", "", RowUnit::token_expert, WeightSite::finalize},
                        {"weighs_back", "", RowUnit::token_expert, WeightSite::combine},
                        {"all_to_all_ranks", "", RowUnit::whole_batch, WeightSite::finalize},
                        {"replicated", "", RowUnit::none, WeightSite::finalize}};
  catalog.fabrics = {{"threads", ""}, {"both_ends", "", true}};
  return catalog;
}

inline Environment environment() {
  Environment environment;
  environment.version = "0.1.0";
  environment.processor = "amd-26-2";
  environment.targets = {{"avx512_bf16", true, true, "AVX-512 BF16"},
                         {"avx2", true, true, "AVX2"},
                         {"amx", false, false, ""},
                         {"neon", true, false, "not this processor"}};
  environment.arithmetic_ranking = environment.few_ranking = {"bf16_dot", "f32"};
  environment.ranking_evidence = "table of processors";
  environment.threads = 2;
  environment.threads_reason = "affinity mask";
  environment.memory_bytes = std::int64_t{24} << 30;
  return environment;
}

inline ProjectionSpec projection(const std::string& format) {
  const Catalog known = catalog();
  const FormatFacts* facts = known.format(format);
  return {.format = format, .block_rows = facts->block_rows, .block_cols = facts->block_cols};
}

/// gpt-oss-20b: 2880 is a multiple of 64 but not of 128.
inline LayerSpec gpt_oss() {
  LayerSpec spec;
  spec.family = "gpt_oss";
  spec.hidden = spec.intermediate = 2880;
  spec.experts = 32;
  spec.top_k = 4;
  spec.activation = {.kind = ActivationKind::swiglu_oai, .gated = true, .alpha = 1.702, .limit = 7, .offset = 1};
  spec.gate_up_order = GateUpOrder::interleaved;
  spec.gate_up = spec.down = projection("mxfp4");
  spec.gate_up.bias = spec.down.bias = true;
  spec.router.score = RouterScore::logits;
  spec.router.normalize = RouterNormalize::softmax;
  spec.router.logit_bias = true;
  return spec;
}

/// Nemotron-H: relu2 without a gate, a shared expert, optionally a latent space.
inline LayerSpec nemotron(std::int64_t latent) {
  LayerSpec spec;
  spec.family = "nemotron_h";
  spec.hidden = 2688;
  spec.latent = latent;
  spec.intermediate = 1856;
  spec.experts = 128;
  spec.top_k = 6;
  spec.activation = {.kind = ActivationKind::relu2, .gated = false};
  spec.gate_up = spec.down = projection("bf16");
  spec.router.score = RouterScore::sigmoid;
  spec.router.selection_bias = true;
  spec.router.scale = 2.5;
  spec.shared.intermediate = 3712;
  spec.shared.activation = spec.activation;
  spec.shared.gate_up = spec.shared.down = projection("bf16");
  if (latent > 0) spec.latent_in = spec.latent_out = projection("bf16");
  return spec;
}

inline PlanResult try_plan(const LayerSpec& spec, const Deployment& deployment = {}) {
  return plan_with(spec, deployment, environment(), catalog());
}
inline Plan plan(const LayerSpec& spec, const Deployment& deployment = {}) { return try_plan(spec, deployment).value(); }

inline Deployment with_backend(const std::string& name, std::int64_t tokens = 1) {
  Deployment deployment;
  deployment.tokens = tokens;
  deployment.wishes.backend = name;
  return deployment;
}

inline const Choice* find_choice(const std::vector<Choice>& choices, std::string_view kind, std::string_view name) {
  const auto found = std::find_if(choices.begin(), choices.end(),
                                  [&](const Choice& choice) { return choice.kind == kind && choice.name == name; });
  return found == choices.end() ? nullptr : &*found;
}

inline bool has_code(const std::vector<Refusal>& refusals, std::string_view code) {
  return std::any_of(refusals.begin(), refusals.end(), [&](const Refusal& refusal) { return refusal.code == code; });
}

}  // namespace motet::fake
