// SPDX-License-Identifier: Apache-2.0
// One layer on several ranks: threads of this process, processes that it starts, or those of an MPI launch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "run_input.h"

namespace motet::cli {

/// How a layer is run, beside its plan.
struct RankWishes {
  double deadline = 30;             ///< seconds
  std::int64_t repeat = 1;
  Hooks hooks;
  std::shared_ptr<Group> mpi;       ///< this process's rank, when the plan's fabric is mpi
};

/// What one rank did in the forward with the median time.
struct RankReport {
  std::int64_t tokens = 0, rows = 0;
  double seconds = 0;
  std::vector<PeerStats> peers;     ///< [ranks]
};

struct RanksRun {
  std::vector<ForwardStats> stats;  ///< one per repeat: the slowest rank of each stage, work of all
  std::vector<std::int64_t> load;   ///< rows of each expert
  std::vector<RankReport> ranks;
  double imbalance() const;         ///< rows of the rank that had most over the mean
};

/// Where results of all tokens go; each rank writes those of its own.
struct RanksOutput {
  std::byte* output = nullptr;
  std::int32_t* top_k_index = nullptr;
  float* top_k_weights = nullptr;
};

/// Most tokens of one rank.
std::int64_t tokens_of_a_rank(std::int64_t tokens, const Deployment& deployment);

/// Runs `repeat` forwards on plan.ranks.size() ranks. Throws the Error of the rank that says most about what went wrong. Over MPI rank 0
/// gets the results and the report of all; the others get an empty run, or throw what went wrong on them.
RanksRun run_on_ranks(const Plan& plan, const std::shared_ptr<const LayerWeights>& weights, const RunInput& input, const RankWishes& wishes,
                      const RanksOutput& output);

}  // namespace motet::cli
