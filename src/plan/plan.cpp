// SPDX-License-Identifier: Apache-2.0
#include "motet/plan.h"

#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "plan/catalog.h"
#include "plan/choices.h"
#include "plan/draft.h"
#include "plan/exchange.h"
#include "plan/fingerprint.h"
#include "plan/memory.h"
#include "plan/recipe.h"
#include "plan/refusals.h"
#include "plan/sizes.h"
#include "plan/spec_check.h"
#include "plan/stages.h"
#include "plan/tail.h"
#include "plan/widths.h"
#include "plan/workspace.h"

namespace motet {
namespace {

Draft make_draft(const Question& question, const Selection& selection, std::int64_t tokens, const BackendStorage& storage) {
  Draft draft{.spec = question.spec,
              .deployment = selection.as_planned,
              .catalog = question.catalog,
              .share = question.share,
              .backend = std::string(selection.backend->name),
              .storage = storage,
              .threads = selection.threads,
              .tokens = tokens,
              .strategy = selection.strategy,
              .wire = selection.wire};
  if (draft.strategy != nullptr)
    draft.exchange = make_exchange(*draft.strategy, *draft.catalog.fabric(draft.deployment.fabric), draft.spec, draft.deployment, draft.wire, tokens);
  return draft;
}

/// The draft for another number of tokens than the asked ones.
Draft redraft(const Question& question, const Selection& selection, std::int64_t tokens) {
  const BackendRequest request{.spec = question.spec,
                               .deployment = selection.as_planned,
                               .environment = question.environment,
                               .target = selection.target,
                               .tokens = tokens,
                               .experts_here = question.share.experts,
                               .intermediate_valid = question.share.intermediate,
                               .shared_intermediate_valid = question.share.shared,
                               .threads = selection.threads};
  return make_draft(question, selection, tokens, selection.backend->storage(request));
}

/// A backend may pad more than check_inputs foresaw.
std::optional<Refusal> check_areas(const std::vector<Area>& areas, const Draft& draft) {
  for (const Area& area : areas)
    if (area.bytes > kLargestSize)
      return Refusal{"too_large", "every area of the workspace must be addressable",
                     "area " + std::string(name_of(area.id)) + " of backend " + draft.backend, "at most 2^56 bytes"};
  for (const std::int64_t bytes : {draft.exchange.mailboxes, draft.exchange.handles})
    if (bytes > kLargestSize)
      return Refusal{"too_large", "what ranks send to one another must be addressable",
                     std::to_string(draft.ranks()) + " ranks, tokens " + std::to_string(draft.tokens), "at most 2^56 bytes"};
  if (draft.storage.prepared > kLargestSize || draft.storage.packed > kLargestSize)
    return Refusal{"too_large", "prepared weights must be addressable", "backend " + draft.backend, "at most 2^56 bytes"};
  return std::nullopt;
}

void prove(const Plan& plan, const Draft& draft) {
  if (!plan.tail.empty()) {
    const auto breach = check_tail(plan.tail, tail_facts(draft));
    MOTET_CHECK(!breach, "tail: %s", breach->c_str());
  }
  const auto breach = check_workspace(plan.workspace, plan.stages);
  MOTET_CHECK(!breach, "workspace: %s", breach->c_str());
}

Plan write_plan(const Question& question, const Draft& draft, const Selection& selection, std::vector<Area> areas,
                std::vector<RankSlice> ranks) {
  Plan plan;
  plan.spec = question.spec;
  plan.deployment = selection.as_planned;
  plan.environment = question.environment;
  plan.backend = draft.backend;
  plan.target = selection.target;
  plan.strategy = selection.strategy == nullptr ? "none" : selection.strategy->name;
  plan.exchange = draft.exchange;
  plan.scheduler = selection.scheduler;
  plan.threads = selection.threads;
  plan.widths = make_widths(draft);
  plan.stages = make_stages(draft);
  if (!draft.unfinalized()) plan.tail = make_tail(tail_facts(draft));
  plan.recipe = make_recipe(draft, question.deployment.wishes.arithmetic);
  plan.workspace = pack(std::move(areas));
  prove(plan, draft);
  plan.choices = selection.choices;
  plan.ranks = std::move(ranks);
  for (RankSlice& slice : plan.ranks) slice.intermediate_stored = draft.storage.intermediate;
  const std::int64_t limit = draft.deployment.memory_limit > 0 ? draft.deployment.memory_limit : question.environment.memory_bytes;
  plan.memory = make_memory(draft, {.limit = limit, .tokens = draft.tokens, .allocated = [&](std::int64_t tokens) {
                                      if (tokens == draft.tokens) return anonymous_of(draft, plan.workspace.bytes);
                                      const Draft other = redraft(question, selection, tokens);
                                      return anonymous_of(other, pack(needed_areas(other)).bytes);
                                    }});
  plan.estimates = make_estimates(draft);
  plan.fingerprint = fingerprint_of(plan);
  return plan;
}

}  // namespace

const FormatFacts* Catalog::format(std::string_view name) const noexcept {
  for (const FormatFacts& facts : formats)
    if (facts.name == name) return &facts;
  return nullptr;
}

const FabricTraits* Catalog::fabric(std::string_view name) const noexcept {
  for (const FabricTraits& traits : fabrics)
    if (traits.name == name) return &traits;
  return nullptr;
}

PlanResult plan_with(const LayerSpec& spec, const Deployment& deployment, const Environment& environment, const Catalog& catalog) {
  PlanResult result;
  result.refusals = check_inputs(spec, deployment, catalog);
  if (!result.refusals.empty()) return result;
  Slices slices = make_slices(spec, deployment, catalog);
  const Question question{spec, deployment, environment, catalog, slices.share};
  Selection selection = select(question);
  result.choices = selection.choices;
  result.refusals = selection.refusals;
  if (!result.refusals.empty()) return result;
  const Draft draft = make_draft(question, selection, deployment.at_once(), selection.storage);
  std::vector<Area> areas = needed_areas(draft);
  if (auto refusal = check_areas(areas, draft)) {
    result.refusals.push_back(std::move(*refusal));
    return result;
  }
  result.plan = write_plan(question, draft, selection, std::move(areas), std::move(slices.ranks));
  return result;
}

const Plan& PlanResult::value() const {
  if (plan && plan->memory.fit != Fit::fits) {
    const MemoryPlan& memory = plan->memory;
    throw Error(ErrorCode::would_not_fit, "the layer needs " + bytes_text(memory.peak) + " (" + bytes_text(memory.anonymous) +
                                              " allocated, " + bytes_text(memory.mapped) + " of mapped weights) and the limit is " +
                                              bytes_text(memory.limit) + ": " + memory.advice);
  }
  if (plan) return *plan;
  ErrorCode code = ErrorCode::not_supported;
  std::string text = "the layer cannot be planned: ";
  for (const Refusal& refusal : refusals) {
    if (error_code_of(refusal) == ErrorCode::invalid_argument) code = ErrorCode::invalid_argument;
    if (&refusal != &refusals.front()) text += "; ";
    text += sentence_of(refusal);
  }
  throw Error(code, text);
}

const Width* Plan::width(Axis axis) const noexcept {
  for (const Width& width : widths)
    if (width.axis == axis) return &width;
  return nullptr;
}

std::int64_t Plan::stored(Axis axis) const noexcept {
  const Width* found = width(axis);
  return found != nullptr ? found->stored : 0;
}

const Area* Plan::area(AreaId id) const noexcept {
  for (const Area& area : workspace.areas)
    if (area.id == id) return &area;
  return nullptr;
}

std::int64_t Plan::max_rows() const noexcept {
  const Area* const token_of = area(AreaId::token_of);  // one for each row
  return token_of == nullptr ? 0 : token_of->bytes / 4;
}

OutputType Plan::output(std::int64_t tokens) const noexcept {
  return {.dtype = deployment.input, .rows = tokens, .cols = spec.hidden, .row_stride = spec.hidden, .col_stride = 1};
}

}  // namespace motet
