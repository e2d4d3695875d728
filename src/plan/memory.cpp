// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include "base/text.h"
#include "plan/sizes.h"

namespace motet {
namespace {

using std::int64_t;

/// Weight bytes of a rank that holds this share. Repacking reads one expert's at a time and drops them again.
int64_t mapped_bytes(const Draft& draft, const Share& share) {
  const WeightSize expert = expert_size(draft.catalog, draft.spec, share.intermediate);
  const WeightSize common = common_size(draft.catalog, draft.spec, share.shared);
  const int64_t experts = draft.storage.packed > 0 ? std::min<int64_t>(1, share.experts) : share.experts;
  return std::min(bounded_product({expert.most_bytes, experts}) + common.most_bytes, kLargestSize);
}

/// Bytes repacked per second. Evidence (404 MiB, two processors of a Granite Rapids guest, December 2026): 1.2 s where the guest
/// had never touched the arena's memory, 0.15 s where it had. The slower counts: a plan does not know.
constexpr double kPackBytesPerSecond = 0.35e9;

/// Most tokens below the asked ones whose peak is within the limit; 0 when there are none.
int64_t tokens_that_fit(const MemoryQuestion& question, int64_t mapped) {
  const auto fits = [&](int64_t tokens) { return question.allocated(tokens).sum() + mapped <= question.limit; };
  if (question.tokens <= 1 || !fits(1)) return 0;
  int64_t good = 1, bad = question.tokens;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

Anonymous anonymous_of(const Draft& draft, int64_t workspace) noexcept {
  return {.workspace = workspace,
          .exchange = draft.exchange.mailboxes + draft.exchange.handles,
          .prepared = draft.storage.prepared,
          .packed = draft.storage.packed};
}

MemoryPlan make_memory(const Draft& draft, const MemoryQuestion& question) {
  const Anonymous allocated = question.allocated(question.tokens);
  MemoryPlan memory;
  memory.workspace = allocated.workspace;
  memory.exchange = allocated.exchange;
  memory.prepared = allocated.prepared;
  memory.packed = allocated.packed;
  memory.packed_padding = draft.storage.packed_padding;
  memory.anonymous = allocated.sum();
  memory.mapped = mapped_bytes(draft, draft.share);
  memory.peak = memory.anonymous + memory.mapped;
  memory.limit = question.limit;
  if (memory.limit == 0) memory.advice = "the machine's memory is unknown: nothing was compared";
  if (memory.limit == 0 || memory.peak <= memory.limit) return memory;
  memory.fit = Fit::would_fit;
  if (const int64_t tokens = tokens_that_fit(question, memory.mapped); tokens > 0) {
    memory.advice = (draft.unfinalized() ? "would with --tokens " : "would with --chunk-tokens ") + std::to_string(tokens);
  } else {
    memory.fit = Fit::does_not_fit;
    memory.advice = "not even one token: " + bytes_text(memory.mapped) + " of weights against " + bytes_text(memory.limit);
  }
  return memory;
}

Estimates make_estimates(const Draft& draft) {
  const LayerSpec& spec = draft.spec;
  const WeightSize expert = expert_size(draft.catalog, spec, spec.intermediate);
  const WeightSize common = common_size(draft.catalog, spec, spec.shared.intermediate);
  // A token may choose zero experts, which read nothing; this is the token that does not.
  const int64_t chosen = std::min(spec.top_k, spec.experts);
  Estimates estimates;
  estimates.weight_bytes_per_token = bounded_product({expert.bytes, chosen}) + common.bytes;
  estimates.parameters_active = bounded_product({expert.parameters, chosen}) + common.parameters;
  estimates.parameters_total = bounded_product({expert.parameters, spec.experts}) + common.parameters;
  estimates.pack_seconds = static_cast<double>(draft.storage.packed) / kPackBytesPerSecond;
  estimates.note = "whole layer; time needs measured rates: motet run";
  return estimates;
}

}  // namespace motet
