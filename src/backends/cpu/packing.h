// SPDX-License-Identifier: Apache-2.0
// Residence packed: lays the weights of experts out anew in an arena of the plan's size.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/layer_weights.h"
#include "motet/executor.h"

namespace motet {

struct PackingWish {
  const LayerWeights& weights;  ///< whose pages are dropped once they were read
  const ExpertView* experts = nullptr;
  std::int64_t count = 0;
  std::string_view gate_up, down;  ///< formats
};

struct PackedBody {
  std::vector<ExpertView> experts;  ///< views of panels, biases as they were
  bool alternate = false;           ///< panels of gate and up alternate: together they are one matrix of twice the panels
};

/// Packs expert by expert from `next` on and moves it past what was written (a multiple of 64 bytes; cpu_packed in cpu/choice.h
/// counts them). The executor's threads write what they will read: rows in the same parts as they are computed.
PackedBody pack_experts(const PackingWish& wish, std::byte*& next, Executor& executor);

}  // namespace motet
