// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/packing.h"

#include "base/math.h"
#include "formats/format.h"
#include "formats/packed.h"

namespace motet {
namespace {

/// Where one matrix goes.
struct Place {
  const FormatFacts* facts;
  const WeightView* from;
  std::byte* out;
  std::int64_t stride, panels;
};

Place place_of(const FormatFacts& facts, const WeightView& from, std::byte* out, std::int64_t every) {
  return {&facts, &from, out, every * panel_layout(facts, from.cols, from.block_cols).bytes, ceil_div(from.rows, kPanelRows)};
}

WeightView pack(const Place& place, Executor& executor) {
  struct Work {
    const Place& place;
    std::int64_t parts;
  } work{place, executor.threads()};
  executor.run(
      work.parts,
      [](void* opaque, std::int64_t part, int) noexcept {
        const auto& [here, parts] = *static_cast<const Work*>(opaque);
        const std::int64_t first = here.panels * part / parts, last = here.panels * (part + 1) / parts;
        pack_panels(*here.facts, *here.from, first, last, here.out + first * here.stride, here.stride);
      },
      &work);
  return packed_view(*place.from, place.out, place.stride);
}

/// Pages that a matrix lies on, first to last byte.
void drop(const LayerWeights& weights, const WeightView& view, const FormatFacts& facts) {
  const std::int64_t row_bytes = ceil_div(view.cols * static_cast<std::int64_t>(facts.bits_per_value), 8);
  const std::int64_t across =
      view.col_stride * 8 > static_cast<std::int64_t>(facts.bits_per_value) ? (view.cols - 1) * view.col_stride : row_bytes;
  weights.drop(view.codes, (view.rows - 1) * view.row_stride + across);
  if (view.scales == nullptr) return;
  weights.drop(view.scales, ceil_div(view.rows, view.block_rows) * view.scale_row_stride);
}

/// One tensor scale serves both halves.
bool alternates(const ExpertView& expert) {
  return expert.gate.codes != nullptr && expert.gate.tensor_scale == expert.up.tensor_scale;
}

}  // namespace

PackedBody pack_experts(const PackingWish& wish, std::byte*& next, Executor& executor) {
  const FormatFacts &gate_up = find_format(wish.gate_up)->facts, &down = find_format(wish.down)->facts;
  PackedBody body{{wish.experts, wish.experts + wish.count}, true};
  for (const ExpertView& expert : body.experts) body.alternate = body.alternate && alternates(expert);
  for (ExpertView& expert : body.experts) {
    const ExpertView from = expert;
    const auto pack_next = [&](const FormatFacts& facts, const WeightView& matrix, WeightView& view) {
      const Place place = place_of(facts, matrix, next, 1);
      view = pack(place, executor);
      next += place.panels * place.stride;
    };
    if (body.alternate) {
      const Place gate = place_of(gate_up, from.gate, next, 2), up = place_of(gate_up, from.up, next + gate.stride / 2, 2);
      expert.gate = pack(gate, executor);
      expert.up = pack(up, executor);
      next += gate.panels * gate.stride;
    } else {
      if (from.gate.codes != nullptr) pack_next(gate_up, from.gate, expert.gate);
      pack_next(gate_up, from.up, expert.up);
    }
    pack_next(down, from.down, expert.down);
    if (from.gate.codes != nullptr) drop(wish.weights, from.gate, gate_up);
    drop(wish.weights, from.up, gate_up);
    drop(wish.weights, from.down, down);
  }
  return body;
}

}  // namespace motet
