// SPDX-License-Identifier: Apache-2.0
#include "plan/workspace.h"

#include <algorithm>

#include "base/math.h"
#include "plan/quantised.h"
#include "plan/sizes.h"

namespace motet {
namespace {

using std::int64_t;

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector of any target

struct Life {
  StageId first, last;
};

int64_t stored_bytes(const TensorType& tensor) {
  int64_t bytes = bits_of(tensor.dtype) / 8;
  for (const int64_t extent : tensor.stored) bytes = bounded_product({bytes, extent});
  return bytes;
}

void need(std::vector<Area>& areas, AreaId id, int64_t bytes, const Life& life) {
  if (bytes > 0) areas.push_back({.id = id, .bytes = bytes, .alignment = kAlignment, .first = life.first, .last = life.last});
}

void need_routing(const Draft& draft, std::vector<Area>& areas) {
  const int64_t choices = bounded_product({draft.tokens, draft.spec.top_k, 4});
  const StageId mapped_at = draft.dispatches() ? StageId::dispatch : StageId::map;
  const StageId chosen_until = draft.unfinalized() || draft.adds_zero_experts() ? StageId::tail : StageId::combine;
  const StageId rows_until = draft.unfinalized() ? StageId::tail : StageId::finalize;
  need(areas, AreaId::logits, bounded_product({draft.tokens, draft.scored(), 4}), {StageId::route, StageId::route});
  need(areas, AreaId::top_k_index, choices, {StageId::route, chosen_until});
  need(areas, AreaId::top_k_weights, choices, {StageId::route, chosen_until});
  need(areas, AreaId::counts, bounded_product({draft.share.experts + 1, 8}), {mapped_at, StageId::finalize});
  need(areas, AreaId::row_of, bounded_product({draft.mapped(), draft.choices(), 4}), {mapped_at, rows_until});
  need(areas, AreaId::token_of, bounded_product({draft.rows(), 4}), {mapped_at, StageId::finalize});
}

/// The shared expert may run at any stage from its own to that of the routed experts.
void need_shared(const Draft& draft, int64_t element, std::vector<Area>& areas) {
  if (draft.has_shared()) {
    const Life running{StageId::shared, StageId::experts};
    need(areas, AreaId::x, bounded_product({draft.tokens, draft.storage.hidden, element}), running);
    need(areas, AreaId::shared_act, bounded_product({draft.tokens, draft.storage.shared_intermediate, element}), running);
    need(areas, AreaId::shared_out, bounded_product({draft.tokens, draft.spec.hidden, 4}), {StageId::shared, StageId::tail});
  } else if (draft.has_latent()) {
    need(areas, AreaId::x, bounded_product({draft.tokens, draft.storage.hidden, element}), {StageId::shared, StageId::latent_in});
  }
}

void need_experts(const Draft& draft, int64_t element, std::vector<Area>& areas) {
  const int64_t rows = draft.rows();
  need(areas, AreaId::permuted, bounded_product({rows, draft.stored_dispatch(), element}),
       {draft.dispatches() ? StageId::dispatch : StageId::prepare, StageId::experts});
  need(areas, AreaId::act, bounded_product({rows, draft.storage.intermediate, element}), {StageId::experts, StageId::experts});
  for (const QuantisedTensor& tensor : quantised_tensors(draft))
    need(areas, tensor.area, stored_bytes(tensor.type), {StageId::experts, StageId::experts});
  need(areas, AreaId::rows, bounded_product({rows, draft.storage.rows_width, 4}),
       {StageId::experts, draft.unfinalized() ? StageId::tail : StageId::finalize});
  if (draft.dispatches())
    need(areas, AreaId::partial, bounded_product({draft.mapped(), draft.spec.dispatch_width(), 4}),
         {StageId::finalize, StageId::combine});
  if (!draft.unfinalized())
    need(areas, AreaId::routed, bounded_product({draft.tokens, draft.spec.dispatch_width(), 4}),
         {draft.dispatches() ? StageId::combine : StageId::finalize, StageId::tail});
}

void need_latent(const Draft& draft, int64_t element, std::vector<Area>& areas) {
  if (!draft.has_latent()) return;
  need(areas, AreaId::latent_x, bounded_product({draft.tokens, draft.spec.latent, 4}),
       {StageId::latent_in, draft.dispatches() ? StageId::dispatch : StageId::prepare});
  if (draft.unfinalized()) return;
  need(areas, AreaId::routed_x, bounded_product({draft.tokens, draft.storage.latent, element}), {StageId::tail, StageId::tail});
  need(areas, AreaId::routed_out, bounded_product({draft.tokens, draft.spec.hidden, 4}), {StageId::tail, StageId::tail});
}

std::string describe(const Area& area) {
  return std::string(name_of(area.id)) + " [" + std::to_string(area.offset) + ", " + std::to_string(area.offset + area.bytes) +
         ") live " + std::string(name_of(area.first)) + ".." + std::string(name_of(area.last));
}

bool overlap(const Area& a, const Area& b) { return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes; }

/// Lowest aligned offset for `area` beside `placed`.
int64_t first_fit(const Area& area, const std::vector<Area>& placed) {
  std::vector<const Area*> rivals;
  for (const Area& other : placed)
    if (live_together(area, other)) rivals.push_back(&other);
  std::sort(rivals.begin(), rivals.end(), [](const Area* a, const Area* b) { return a->offset < b->offset; });
  int64_t offset = 0;
  for (const Area* rival : rivals) {
    if (offset + area.bytes <= rival->offset) break;
    offset = std::max(offset, round_up(rival->offset + rival->bytes, area.alignment));
  }
  return offset;
}

std::optional<std::string> check_tensor(const Workspace& workspace, const Stage& stage, const TensorType& tensor) {
  for (const Area& area : workspace.areas) {
    if (name_of(area.id) != tensor.name) continue;
    const int64_t bytes = stored_bytes(tensor);
    if (bytes > area.bytes)
      return describe(area) + " is smaller than the " + std::to_string(bytes) + " bytes that stage " + stage.name + " stores there";
    if (stage.id < area.first || area.last < stage.id) return describe(area) + " is not live in stage " + stage.name;
    return std::nullopt;
  }
  if (tensor.name == "hidden_states" || tensor.name == "output") return std::nullopt;
  return "stage " + stage.name + " has no area for " + tensor.name;
}

}  // namespace

std::vector<Area> needed_areas(const Draft& draft) {
  const int64_t element = bits_of(draft.storage.activation) / 8;
  std::vector<Area> areas;
  areas.reserve(23);
  need_routing(draft, areas);
  need_shared(draft, element, areas);
  need_experts(draft, element, areas);
  need_latent(draft, element, areas);
  const int64_t per_thread = std::min(draft.storage.scratch_per_thread, kLargestSize);
  need(areas, AreaId::scratch, bounded_product({draft.threads, round_up(per_thread, kAlignment)}), {StageId::input, StageId::tail});
  return areas;
}

Workspace pack(std::vector<Area> areas) {
  std::stable_sort(areas.begin(), areas.end(), [](const Area& a, const Area& b) { return a.bytes > b.bytes; });
  Workspace workspace;
  for (Area& area : areas) {
    area.offset = first_fit(area, workspace.areas);
    workspace.bytes = std::max(workspace.bytes, round_up(area.offset + area.bytes, kAlignment));
    workspace.areas.push_back(area);
  }
  std::sort(workspace.areas.begin(), workspace.areas.end(), [](const Area& a, const Area& b) { return a.id < b.id; });
  return workspace;
}

bool live_together(const Area& a, const Area& b) noexcept { return a.first <= b.last && b.first <= a.last; }

std::optional<std::string> disjoint(const std::vector<Area>& areas) {
  for (std::size_t i = 0; i < areas.size(); ++i)
    for (std::size_t j = i + 1; j < areas.size(); ++j)
      if (live_together(areas[i], areas[j]) && overlap(areas[i], areas[j]))
        return describe(areas[i]) + " overlaps " + describe(areas[j]);
  return std::nullopt;
}

std::optional<std::string> check_workspace(const Workspace& workspace, const std::vector<Stage>& stages) {
  for (const Area& area : workspace.areas) {
    if (area.offset < 0 || area.bytes > workspace.bytes - area.offset) return describe(area) + " leaves the workspace";
    if (area.offset % area.alignment != 0) return describe(area) + " is not aligned to " + std::to_string(area.alignment);
  }
  if (auto breach = disjoint(workspace.areas)) return breach;
  for (const Stage& stage : stages)
    for (const auto* tensors : {&stage.in, &stage.out})
      for (const TensorType& tensor : *tensors)
        if (auto breach = check_tensor(workspace, stage, tensor)) return breach;
  return std::nullopt;
}

}  // namespace motet
