// SPDX-License-Identifier: Apache-2.0
#include "plan/widths.h"

#include "base/check.h"
#include "base/math.h"

namespace motet {
namespace {

struct Extent {
  std::int64_t valid, stored;
};

Width backend_width(const Draft& draft, Axis axis, const Extent& extent) {
  MOTET_CHECK(extent.stored >= extent.valid, "backend %s stores %lld of %lld valid on %.*s", draft.backend.c_str(),
              static_cast<long long>(extent.stored), static_cast<long long>(extent.valid), static_cast<int>(name_of(axis).size()),
              name_of(axis).data());
  const bool padded = extent.stored > extent.valid;
  return {.axis = axis,
          .valid = extent.valid,
          .stored = extent.stored,
          .owner = padded ? draft.backend : "model",
          .reason = padded ? draft.storage.reason : "no padding"};
}

std::int64_t scales(std::int64_t extent, std::int64_t block) { return block == 0 ? 1 : ceil_div(extent, block); }

}  // namespace

std::vector<Width> make_widths(const Draft& draft) {
  const LayerSpec& spec = draft.spec;
  const BackendStorage& storage = draft.storage;
  std::vector<Width> widths;
  widths.reserve(10);
  widths.push_back(backend_width(draft, Axis::hidden, {spec.hidden, storage.hidden}));
  if (draft.has_latent()) widths.push_back(backend_width(draft, Axis::latent, {spec.latent, storage.latent}));
  if (spec.activation.gated) widths.push_back(backend_width(draft, Axis::gate, {draft.share.intermediate, storage.gate}));
  widths.push_back(backend_width(draft, Axis::up, {draft.share.intermediate, storage.up}));
  widths.push_back(backend_width(draft, Axis::down_in, {draft.share.intermediate, storage.intermediate}));
  widths.push_back(backend_width(draft, Axis::down_out, {spec.dispatch_width(), storage.rows_width}));
  if (spec.shared.intermediate > 0)
    widths.push_back(backend_width(draft, Axis::shared, {draft.share.shared, storage.shared_intermediate}));
  const FormatFacts* format = draft.catalog.format(spec.gate_up.format);
  if (format->scale_bytes > 0) {
    // Weights are read where the file has them, so that their scales have no padding.
    const std::string owner = "format " + spec.gate_up.format;
    const std::int64_t rows = scales(draft.share.intermediate, spec.gate_up.block_rows);
    const std::int64_t cols = scales(spec.dispatch_width(), spec.gate_up.block_cols);
    widths.push_back(
        {.axis = Axis::scale_rows, .valid = rows, .stored = rows, .owner = owner, .reason = "scales of up as published"});
    widths.push_back(
        {.axis = Axis::scale_cols, .valid = cols, .stored = cols, .owner = owner, .reason = "scales of up as published"});
  }
  widths.push_back(
      {.axis = Axis::tokens,
       .valid = draft.tokens,
       .stored = draft.tokens,
       .owner = "caller",
       .reason = draft.tokens < draft.deployment.tokens ? "most tokens that run at once" : "most tokens of one forward"});
  return widths;
}

}  // namespace motet
