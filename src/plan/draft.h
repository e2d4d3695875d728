// SPDX-License-Identifier: Apache-2.0
// What is settled before widths, stages, tail, recipe, workspace and memory are written down: the inputs of those pure functions.
#pragma once

#include <algorithm>
#include <string>

#include "plan/catalog.h"
#include "plan/sizes.h"
#include "plan/slices.h"

namespace motet {

struct Draft {
  const LayerSpec& spec;
  const Deployment& deployment;  ///< as planned: a substituted wish holds what was taken
  const Catalog& catalog;
  Share share;
  std::string backend;
  BackendStorage storage;
  int threads = 1;
  std::int64_t tokens = 0;
  const StrategyTraits* strategy = nullptr;  ///< null on one rank
  DType wire = DType::f32;
  ExchangePlan exchange = {};

  /// Rows that are given to experts come from other ranks.
  bool dispatches() const { return strategy != nullptr && strategy->unit != RowUnit::none; }
  /// Rows that are mapped to experts here, and how many experts each may have.
  std::int64_t mapped() const { return dispatches() ? exchange.rows : tokens; }
  std::int64_t choices() const { return dispatches() ? exchange.choices : spec.top_k; }
  /// Most rows of the permuted batch: a row goes to an expert once.
  std::int64_t rows() const { return bounded_product({mapped(), ranks() == 1 ? choices() : std::min(choices(), share.experts)}); }
  std::int64_t scored() const { return spec.experts + spec.router.zero_experts; }
  bool unfinalized() const { return deployment.wishes.finalize == Finalize::unfinalized; }
  /// Unfinalized rows are routed rows: the shared expert and the tail are the caller's.
  bool has_shared() const { return spec.shared.intermediate > 0 && !unfinalized(); }
  bool has_latent() const { return spec.latent > 0; }
  bool adds_zero_experts() const { return spec.router.zero_expert_kind == ZeroExpertKind::identity && !unfinalized(); }
  bool weight_on_input() const { return spec.router.weight_site == WeightSite::input; }
  std::int64_t ranks() const { return deployment.tp * deployment.ep; }
  std::int64_t stored_dispatch() const { return has_latent() ? storage.latent : storage.hidden; }
};

}  // namespace motet
