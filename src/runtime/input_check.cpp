// SPDX-License-Identifier: Apache-2.0
#include "runtime/input_check.h"

#include "base/dtype.h"
#include "base/status.h"
#include "runtime/rows.h"

namespace motet {
namespace {

long long as_ll(std::int64_t value) noexcept { return static_cast<long long>(value); }

/// A matrix argument against [rows, cols] of `dtype`.
RunStatus check_matrix(const char* what, const void* data, DType dtype, std::int64_t rows, std::int64_t cols, DType dtype_needed,
                       std::int64_t rows_needed, std::int64_t cols_needed) noexcept {
  if (rows != rows_needed || cols != cols_needed)
    return make_status(ErrorCode::wrong_shape,
                       "%s must be [%lld, %lld] as the plan says, but it is [%lld, %lld]; pass true widths, never padded ones",
                       what, as_ll(rows_needed), as_ll(cols_needed), as_ll(rows), as_ll(cols));
  if (dtype != dtype_needed)
    return make_status(ErrorCode::wrong_dtype,
                       "%s must be %s as the plan says, but it is %s; convert it or plan with that input dtype", what,
                       name_of(dtype_needed).data(), name_of(dtype).data());
  if (data == nullptr && rows > 0 && cols > 0)
    return make_status(ErrorCode::invalid_argument, "%s must point to [%lld, %lld] elements, but it is null; pass the tensor", what,
                       as_ll(rows), as_ll(cols));
  return {};
}

RunStatus check_output(const Plan& plan, std::int64_t tokens, const ForwardOutput& output) noexcept {
  if (plan.deployment.wishes.finalize == Finalize::unfinalized) {
    if (output.unfinalized == nullptr || output.output.data != nullptr)
      return make_status(
          ErrorCode::invalid_argument,
          "a plan with finalize = unfinalized gives the triple and no output matrix, but %s; set ForwardOutput::unfinalized alone",
          output.unfinalized == nullptr ? "no place for the triple was given" : "an output matrix was given");
    return {};
  }
  if (output.unfinalized != nullptr)
    return make_status(ErrorCode::invalid_argument,
                       "this plan's finalize gives finalized rows, but a place for the unfinalized triple was given; plan with "
                       "finalize = unfinalized");
  const OutputType type = plan.output(tokens);
  return check_matrix("output", output.output.data, output.output.dtype, output.output.rows, output.output.cols, type.dtype,
                      type.rows, type.cols);
}

RunStatus check_given_routing(const Extents& extents, std::int64_t tokens, const ForwardInput& input) noexcept {
  if (input.absent_id >= 0 && input.absent_id < extents.choices())
    return make_status(
        ErrorCode::invalid_argument,
        "the id that means no expert must lie outside 0..%lld, but absent_id is %d; declare an id that names no expert",
        as_ll(extents.choices() - 1), input.absent_id);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int32_t* ids = input.top_k_index + token * extents.top_k;
    for (std::int64_t k = 0; k < extents.top_k; ++k) {
      if (ids[k] == input.absent_id) continue;
      if (ids[k] < 0 || ids[k] >= extents.choices())
        return make_status(ErrorCode::id_out_of_range,
                           "an expert id must be in 0..%lld or the declared absent id %d, but token %lld has %d at position %lld; "
                           "fix the id or declare absent_id",
                           as_ll(extents.choices() - 1), input.absent_id, as_ll(token), ids[k], as_ll(k));
      for (std::int64_t earlier = 0; earlier < k; ++earlier)
        if (ids[earlier] == ids[k])
          return make_status(ErrorCode::duplicate_id,
                             "a token names each expert at most once, but token %lld has expert %d at positions %lld and %lld; "
                             "merge their weights",
                             as_ll(token), ids[k], as_ll(earlier), as_ll(k));
    }
  }
  return {};
}

RunStatus check_hash_routing(const Extents& extents, const LayerWeights& weights, std::int64_t tokens,
                             const ForwardInput& input) noexcept {
  if (weights.token_table == nullptr)
    return make_status(
        ErrorCode::invalid_argument,
        "hash routing reads a table of experts by token id, but these weights hold none; load a checkpoint that has it");
  if (input.token_ids == nullptr && tokens > 0)
    return make_status(ErrorCode::invalid_argument,
                       "hash routing needs the token ids, but none were given; set ForwardInput::token_ids");
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::int64_t id = input.token_ids[token];
    if (id < 0 || id >= weights.vocabulary)
      return make_status(
          ErrorCode::id_out_of_range,
          "a token id must be in 0..%lld, the table of hash routing, but token %lld has %lld; pass ids of this model's vocabulary",
          as_ll(weights.vocabulary - 1), as_ll(token), as_ll(id));
    for (std::int64_t k = 0; k < extents.top_k; ++k) {
      const std::int64_t expert = hash_expert(weights, extents.top_k, id, k);
      if (expert < 0 || expert >= extents.choices())
        return make_status(
            ErrorCode::id_out_of_range,
            "the hash table must name experts in 0..%lld, but token id %lld has %lld at position %lld; the checkpoint is damaged",
            as_ll(extents.choices() - 1), as_ll(id), as_ll(expert), as_ll(k));
      for (std::int64_t earlier = 0; earlier < k; ++earlier)
        if (hash_expert(weights, extents.top_k, id, earlier) == expert)
          return make_status(ErrorCode::duplicate_id,
                             "the hash table names each expert at most once per token id, but id %lld has expert %lld twice; the "
                             "checkpoint is damaged",
                             as_ll(id), as_ll(expert));
    }
  }
  return {};
}

RunStatus check_routing(const Plan& plan, const Extents& extents, const LayerWeights& weights, std::int64_t tokens,
                        const ForwardInput& input) noexcept {
  const bool has_logits = input.router_logits.data != nullptr || input.router_logits.rows != 0 || input.router_logits.cols != 0;
  if (input.top_k_index != nullptr || input.top_k_weights != nullptr) {
    if (input.top_k_index == nullptr || input.top_k_weights == nullptr)
      return make_status(ErrorCode::invalid_argument,
                         "given routing is top_k_index and top_k_weights together, but %s is missing; pass both or neither",
                         input.top_k_index == nullptr ? "top_k_index" : "top_k_weights");
    if (has_logits)
      return make_status(
          ErrorCode::invalid_argument,
          "routing is given either as router_logits or as top_k_index with top_k_weights, but both were given; pass one");
    return check_given_routing(extents, tokens, input);
  }
  if (has_logits) {
    const ConstMatrix& logits = input.router_logits;
    if (RunStatus status = check_matrix("router_logits", logits.data, logits.dtype, logits.rows, logits.cols, DType::f32, tokens,
                                        extents.choices());
        !status.ok())
      return status;
  } else if (weights.router.codes == nullptr && tokens > 0) {
    return make_status(
        ErrorCode::invalid_argument,
        "these weights hold no router, so forward needs router_logits or top_k_index with top_k_weights; neither was given");
  }
  if (plan.spec.router.selection == RouterSelection::hash) return check_hash_routing(extents, weights, tokens, input);
  return {};
}

}  // namespace

std::int64_t hash_expert(const LayerWeights& weights, std::int64_t top_k, std::int64_t token_id, std::int64_t k) noexcept {
  const std::int64_t element = token_id * top_k + k;
  return static_cast<std::int64_t>(
      load_as_f64(weights.token_table_dtype, weights.token_table + element * bytes_of(weights.token_table_dtype)));
}

RunStatus check_forward_arguments(const Plan& plan, const Extents& extents, const LayerWeights& weights, const ForwardInput& input,
                                  const ForwardOutput& output) noexcept {
  const ConstMatrix& hidden_states = input.hidden_states;
  const std::int64_t tokens = hidden_states.rows;
  if (tokens > extents.max_tokens)
    return make_status(ErrorCode::tokens_exceed_plan,
                       "forward takes at most the %lld tokens of its plan, but %lld were given; plan with tokens = %lld",
                       as_ll(extents.max_tokens), as_ll(tokens), as_ll(tokens));
  if (tokens < 0)
    return make_status(ErrorCode::wrong_shape, "hidden_states must have 0 or more rows, but it has %lld; pass the token count",
                       as_ll(tokens));
  if (RunStatus status = check_matrix("hidden_states", hidden_states.data, hidden_states.dtype, tokens, hidden_states.cols,
                                      plan.deployment.input, tokens, extents.hidden);
      !status.ok())
    return status;
  if (RunStatus status = check_output(plan, tokens, output); !status.ok()) return status;
  return check_routing(plan, extents, weights, tokens, input);
}

}  // namespace motet
