// SPDX-License-Identifier: Apache-2.0
// Finalize: GEMM2 rows to one routed sum per token, built in or through the model's row hook (docs/hooks.md).
//
//   t = fp32(w * y), s = fp32(s + t), k ascending from s = 0, no contraction
#pragma once

#include <cstdint>
#include <span>

#include "comm/exchange.h"
#include "motet/layer.h"

namespace motet {

struct FinalizeArgs {
  float* rows = nullptr;  ///< fp32 [row count, rows_stride], `width` of them valid; the row hook changes them
  std::int64_t rows_stride = 0, width = 0, top_k = 0;
  const std::int32_t* row_of = nullptr;      ///< [tokens, top_k]; -1 = skipped by index (L8)
  const std::int32_t* expert = nullptr;      ///< [tokens, top_k]
  const float* weight = nullptr;             ///< [tokens, top_k]
  std::int64_t rank = 0;                     ///< whose tokens these are, for the hook
  std::int64_t first_token = 0;              ///< the number of a rank's first token here, for the hook
  std::span<const SourceRows> sources = {};  ///< or where the rows came from that stand for tokens here; see token_choices
  std::int64_t token_choices = 0;            ///< of a token on its own rank; a row that came may carry one of them only
  bool weigh = true;                         ///< false: the weight was applied at another site (L14), rows are summed as they are
  RowHook hook = nullptr;                    ///< applies the weight itself
  void* hook_context = nullptr;
  float* routed = nullptr;  ///< out fp32 [tokens, width], contiguous
};

/// The routed sums of tokens [begin, end). Rows of other tokens are not touched.
void finalize_tokens(const FinalizeArgs& args, std::int64_t begin, std::int64_t end) noexcept;

}  // namespace motet
