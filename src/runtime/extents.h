// SPDX-License-Identifier: Apache-2.0
// Every width and stride that forward uses, read once from the plan (L1). No stage learns a width from a tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "motet/plan.h"

namespace motet {

/// Valid and stored extents in elements; strides of prepared activations in bytes.
struct Extents {
  std::int64_t hidden = 0, latent = 0;  ///< valid; latent 0 = none
  std::int64_t dispatch = 0;            ///< valid width that experts read and write
  std::int64_t experts = 0, zero_experts = 0, top_k = 0;
  std::int64_t max_tokens = 0, chunk_tokens = 0;  ///< of a forward; at once
  std::int64_t hidden_stored = 0, dispatch_stored = 0, latent_stored = 0;
  std::int64_t act_stored = 0, shared_act_stored = 0;
  std::int64_t rows_stored = 0;       ///< stored width of GEMM2 rows
  std::int64_t activation_bytes = 0;  ///< of one prepared element

  std::int64_t choices() const { return experts + zero_experts; }
  std::int64_t x_stride() const { return hidden_stored * activation_bytes; }
  std::int64_t permuted_stride() const { return dispatch_stored * activation_bytes; }
  std::int64_t routed_x_stride() const { return latent_stored * activation_bytes; }
  std::int64_t act_stride() const { return act_stored * activation_bytes; }
  std::int64_t shared_act_stride() const { return shared_act_stored * activation_bytes; }
};

/// Requires a plan as plan() makes it, as all here; Layer::create has seen to that.
Extents extents_of(const Plan& plan);

/// Pointers into the workspace, one per area; null when the plan has no such area.
struct Areas {
  float* logits = nullptr;
  std::int32_t* index = nullptr;
  float* weights = nullptr;
  std::int64_t* first_row = nullptr;
  std::int32_t* row_of = nullptr;
  std::int32_t* token_of = nullptr;
  std::byte* x = nullptr;
  float* latent_x = nullptr;
  std::byte* permuted = nullptr;
  std::byte* act = nullptr;
  std::byte *permuted_codes = nullptr, *permuted_scales = nullptr;
  std::byte *act_codes = nullptr, *act_scales = nullptr;
  std::byte* linear_scales = nullptr;
  float* rows = nullptr;
  float* partial = nullptr;
  float* routed = nullptr;
  std::byte* routed_x = nullptr;
  float* routed_out = nullptr;
  std::byte* shared_act = nullptr;
  float* shared_out = nullptr;
  std::byte* scratch = nullptr;
  std::int64_t scratch_stride = 0;  ///< bytes per thread
};

/// Points the areas into a workspace of plan.workspace.bytes.
Areas areas_of(const Plan& plan, std::byte* workspace);

}  // namespace motet
