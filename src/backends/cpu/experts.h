// SPDX-License-Identifier: Apache-2.0
// Runs experts with the kernels of one target: two phases over (slot, row block), GEMM1 with the body, then GEMM2.
//
// Bits: a row's value depends on its own weights, its token and on which of `few` and `many` ran (how many tokens the expert
// got, never more than that: few_of in cpu/choice.h), so that threads, row blocks and repetition change nothing.
#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/choice.h"

namespace motet {

/// Requires a plan as plan() makes it. Throws Error: wrong_shape (weights of another layer or rank).
std::unique_ptr<PreparedBackend> prepare_cpu(const Plan& plan, std::int64_t rank, std::shared_ptr<const LayerWeights> weights,
                                             Executor& executor);

}  // namespace motet
