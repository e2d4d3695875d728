// SPDX-License-Identifier: Apache-2.0
#include "runtime/finalize.h"

#include <algorithm>

namespace motet {
namespace {

void add_weighted(const float* row, float weight, std::int64_t width, float* sum) noexcept {
  for (std::int64_t i = 0; i < width; ++i) {
    const float term = weight * row[i];
    sum[i] = sum[i] + term;
  }
}

void add_row(const float* row, std::int64_t width, float* sum) noexcept {
  for (std::int64_t i = 0; i < width; ++i) sum[i] = sum[i] + row[i];
}

}  // namespace

void finalize_tokens(const FinalizeArgs& args, std::int64_t begin, std::int64_t end) noexcept {
  for (std::int64_t token = begin; token < end; ++token) {
    float* sum = args.routed + token * args.width;
    std::fill_n(sum, args.width, 0.0f);
    for (std::int64_t k = 0; k < args.top_k; ++k) {
      const std::int64_t choice = token * args.top_k + k;
      if (args.row_of[choice] < 0) continue;
      float* row = args.rows + args.row_of[choice] * args.rows_stride;
      if (args.hook != nullptr) {
        args.hook(args.hook_context, HookRow{.row = row,
                                             .width = args.width,
                                             .slot = SlotId{args.expert[choice]},
                                             .expert = ExpertId{args.expert[choice]},
                                             .weight = args.weight[choice],
                                             .token = token,
                                             .k = k});
        add_row(row, args.width, sum);
      } else if (args.weigh) {
        add_weighted(row, args.weight[choice], args.width, sum);
      } else {
        add_row(row, args.width, sum);
      }
    }
  }
}

}  // namespace motet
