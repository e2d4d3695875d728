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

/// Rank, token and k of choice k of row `token`.
HookRow origin_of(const FinalizeArgs& args, std::int64_t token, std::int64_t k) noexcept {
  if (args.sources.empty()) return {.rank = args.rank, .token = args.first_token + token, .k = k};
  const auto after = std::upper_bound(args.sources.begin(), args.sources.end(), token,
                                      [](std::int64_t row, const SourceRows& source) { return row < source.first; });
  const SourceRows& source = *(after - 1);
  const std::int32_t item = source.choice[token - source.first];
  const std::int64_t rank = after - 1 - args.sources.begin();
  if (args.top_k == args.token_choices) return {.rank = rank, .token = args.first_token + item, .k = k};
  return {.rank = rank, .token = args.first_token + item / args.token_choices, .k = item % args.token_choices};
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
        HookRow hooked = origin_of(args, token, k);
        hooked.row = row;
        hooked.width = args.width;
        hooked.slot = SlotId{args.expert[choice]};
        hooked.expert = ExpertId{args.expert[choice]};
        hooked.weight = args.weight[choice];
        args.hook(args.hook_context, hooked);
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
