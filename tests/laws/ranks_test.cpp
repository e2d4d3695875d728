// SPDX-License-Identifier: Apache-2.0
// A layer whose experts are spread over ranks: what L7 to L15 and L19 say of several of them.
#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <thread>

#include "base/numbers.h"
#include "comm/strategy.h"
#include "fixture.h"
#include "motet/group.h"
#include "runtime/layer_impl.h"

namespace motet::laws {
namespace {

/// How a layer is spread.
struct Spread {
  std::int64_t tp = 1, ep = 1;
  std::string strategy, wire = "fp32";
  TokenPlacement placement = TokenPlacement::sharded;
  std::int64_t chunk_tokens = 0;
  std::int64_t ranks() const { return tp * ep; }
};

/// The share of rank r: uneven, and nothing for rank 1 when there are more than two.
struct Span {
  std::int64_t begin = 0, count = 0;
};
std::vector<Span> shares(std::int64_t tokens, const Spread& spread) {
  const std::int64_t ranks = spread.ranks();
  std::vector<Span> out;
  for (std::int64_t r = 0, begin = 0; r < ranks; ++r) {
    std::int64_t count = ranks > 2 && r == 1 ? 0 : std::min(tokens - begin, tokens / ranks + 1 + r % 2);
    if (r == ranks - 1) count = tokens - begin;  // what is left, so that no token is forgotten
    if (spread.placement == TokenPlacement::replicated) begin = 0, count = tokens;
    out.push_back({begin, count});
    begin += count;
  }
  return out;
}

Deployment deployment_of(const CheckWay& way, const Spread& spread, std::int64_t tokens) {
  Deployment deployment;
  deployment.tokens = tokens;
  deployment.chunk_tokens = spread.chunk_tokens;
  deployment.tp = spread.tp;
  deployment.ep = spread.ep;
  deployment.placement = spread.placement;
  deployment.input = DType::f32;
  deployment.wishes.backend = way.backend;
  deployment.wishes.target = way.target;
  deployment.wishes.strategy = spread.strategy;
  deployment.wishes.wire = spread.wire;
  deployment.wishes.arithmetic = way.arithmetic;
  deployment.wishes.residence = way.residence;
  deployment.wishes.invariant = way.invariant;
  deployment.wishes.finalize = way.finalize;
  deployment.wishes.threads = spread.ep == 3 ? 2 : 1;  // blocks of rows are then cut between threads
  return deployment;
}

/// The body of each rank of a group of threads.
void on_ranks(const Plan& plan, double deadline, const std::function<void(std::shared_ptr<Group>)>& body) {
  auto groups = Group::threads(static_cast<int>(plan.ranks.size()),
                               {.mailbox_bytes = mailbox_bytes_of(plan), .deadline = deadline, .creation_deadline = deadline});
  std::vector<std::thread> threads;
  for (auto& group : groups) threads.emplace_back([&body, group = std::move(group)]() mutable { body(std::move(group)); });
  for (std::thread& thread : threads) thread.join();
}

/// Output of all tokens, each by the rank whose token it is; every rank's when tokens are replicated must be equal.
std::vector<float> run_spread(const LayerSpec& spec, const CheckWay& way, const Spread& spread, const std::vector<float>& x,
                              const Routing& routing, const Hooks& hooks = {}) {
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / spec.hidden;
  std::int64_t most = 1;
  for (const Span& share : shares(tokens, spread)) most = std::max(most, share.count);
  const Plan made = plan(spec, deployment_of(way, spread, most), machine()).value();
  const auto weights = weights_of(spec);
  std::vector<float> out(x.size(), -1.0f);
  std::vector<std::vector<float>> whole(made.ranks.size());
  std::mutex mutex;
  on_ranks(made, 60, [&](std::shared_ptr<Group> group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    try {
      const auto layer = create_layer(made, weights, hooks, nullptr, {.poison = true}, group);
      const Span mine = shares(tokens, spread)[rank];
      const auto first = mine.begin * spec.hidden, last = (mine.begin + mine.count) * spec.hidden;
      const std::vector<float> own(x.begin() + first, x.begin() + last);
      Routing part = routing;
      part.index.assign(routing.index.begin() + mine.begin * spec.top_k,
                        routing.index.begin() + (mine.begin + mine.count) * spec.top_k);
      part.weights.assign(routing.weights.begin() + mine.begin * spec.top_k,
                          routing.weights.begin() + (mine.begin + mine.count) * spec.top_k);
      CheckRun run = run_given(*layer, own, part);
      EXPECT_TRUE(run.status.ok()) << run.status.text();
      run = run_given(*layer, own, part);  // a second step on the same poisoned workspace
      const std::scoped_lock lock(mutex);
      ASSERT_TRUE(run.status.ok()) << run.status.text();
      whole[rank] = run.output;
      std::copy(run.output.begin(), run.output.end(), out.begin() + first);
    } catch (const Error& error) {
      const std::scoped_lock lock(mutex);
      ADD_FAILURE() << error.what();
    }
  });
  for (const std::vector<float>& each : whole) EXPECT_TRUE(spread.placement == TokenPlacement::sharded || same_bits(each, out));
  return out;
}

CheckWay fast_way(Arithmetic arithmetic) {
  CheckWay way{.backend = "cpu", .target = {}, .arithmetic = arithmetic};
  return way;
}

std::vector<Spread> spreads(const LayerSpec& spec, const CheckWay& way) {
  std::vector<Spread> out;
  for (const StrategyTraits* strategy : all_strategies())
    for (const auto& [tp, ep] : {std::pair<std::int64_t, std::int64_t>{1, 2}, {1, 3}, {1, 7}, {2, 1}, {4, 1}, {2, 2}}) {
      if (kSlow && tp * ep != 3 && tp * ep != 4) continue;
      Spread spread{.tp = tp, .ep = ep, .strategy = std::string(strategy->name)};
      if (strategy->unit == RowUnit::none) spread.placement = TokenPlacement::replicated;
      if (!plan(spec, deployment_of(way, spread, 5), machine()).plan) continue;
      const bool chunks = tp * ep == 3 || (tp == 2 && ep == 2 && !kSlow);
      if (!kSlow || !chunks) out.push_back(spread);
      spread.chunk_tokens = 2;  // some ranks have more chunks than others
      if (chunks) out.push_back(spread);
    }
  return out;
}

std::string text_of(const Spread& spread) {
  return spread.strategy + " tp " + std::to_string(spread.tp) + " ep " + std::to_string(spread.ep) + " " + spread.wire + " chunk " +
         std::to_string(spread.chunk_tokens);
}

TEST(L9, EverySpreadOfEveryShapeHasTheResultOfTheFormulas) {
  for (const NamedShape& shape : check_shapes()) {
    const LayerSpec& spec = shape.spec;
    const std::vector<float> x = inputs_of(spec, 7);
    Routing routing = routing_of(spec, 7);
    routing.index[1] = kAbsent;
    const std::vector<double> truth = oracle(spec, *weights_of(spec), x, routing);
    for (const CheckWay& way : {fast_way(Arithmetic::exact), reference_way()}) {
      if (kSlow && way.backend == "reference") continue;
      std::int64_t ran = 0;
      for (const Spread& spread : spreads(spec, way)) {
        SCOPED_TRACE(shape.name + " " + way.backend + " " + text_of(spread));
        const double bound = plan(spec, deployment_of(way, spread, 7), machine()).value().recipe.error_bound;
        EXPECT_LE(distance(run_spread(spec, way, spread, x, routing), truth), bound);
        ++ran;
      }
      EXPECT_GE(ran, kSlow ? 10 : 20) << shape.name;
    }
  }
}

TEST(L15, OneSumOverKHasTheBitsOfOneRank) {
  for (const char* name : {"hidden-2880", "intermediate-704", "hidden-2688-shared", "latent-1024-norm"}) {
    const LayerSpec& spec = check_shape(name);
    const std::vector<float> x = inputs_of(spec, 9);
    const Routing routing = routing_of(spec, 9);
    for (const bool invariant : {false, true}) {
      CheckWay way = fast_way(Arithmetic::exact);
      way.invariant = invariant;
      const std::vector<float> one = run_given(*make_layer(spec, way, 9), x, routing).output;
      for (const char* strategy : {"alltoall_single", "low_latency"})
        for (const std::int64_t ep : {2, 3, 5})
          for (const std::int64_t chunk_tokens : {0, 1, 3, 4}) {
            if (chunk_tokens > 0 && (!invariant || ep != 3)) continue;
            const Spread spread{.ep = ep, .strategy = strategy, .chunk_tokens = chunk_tokens};
            EXPECT_TRUE(same_bits(run_spread(spec, way, spread, x, routing), one))
                << name << " " << text_of(spread) << " " << invariant;
          }
    }
  }
}

TEST(L15, InvariantTakesOnlyStrategiesWithOneSumOverKAndAnFp32Wire) {
  const LayerSpec& spec = check_shape("intermediate-704");
  CheckWay way = fast_way(Arithmetic::bf16);
  way.invariant = true;
  const Plan unasked = plan(spec, deployment_of(way, {.ep = 2, .wire = ""}, 3), machine()).value();
  EXPECT_EQ(unasked.strategy, "alltoall_single");
  EXPECT_EQ(unasked.recipe.wire, DType::f32);
  for (const Spread& refused : {Spread{.ep = 2, .strategy = "alltoall"},
                                {.ep = 2, .strategy = "allgather"},
                                {.ep = 2, .strategy = "alltoall_single", .wire = "bf16"},
                                {.ep = 2, .strategy = "", .placement = TokenPlacement::replicated}})
    EXPECT_FALSE(plan(spec, deployment_of(way, refused, 3), machine()).plan) << text_of(refused);
}

/// The recipe of strategies that add a rank's experts before the wire, replayed from one rank's own sums.
TEST(L15, SumsOfRanksAreRoundedOnceToTheWireAndAddedInOrderOfRank) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const CheckWay way = fast_way(Arithmetic::bf16);
  const std::vector<float> x = inputs_of(spec, 9);
  const Routing routing = routing_of(spec, 9);
  const auto one = make_layer(spec, way, 9);
  for (const char* strategy : {"alltoall", "allgather", "allreduce"})
    for (const char* wire : {"fp32", "bf16"})
      for (const std::int64_t ep : {2, 3}) {
        Spread spread{.ep = ep, .strategy = strategy, .wire = wire};
        if (spread.strategy == "allreduce") spread.placement = TokenPlacement::replicated;
        const Plan made = plan(spec, deployment_of(way, spread, 9), machine()).value();
        std::vector<float> truth(x.size(), 0.0f);
        for (const RankSlice& slice : made.ranks) {
          Routing masked = routing;
          for (std::int32_t& id : masked.index)
            if (id < slice.expert_begin || id >= slice.expert_begin + slice.expert_count) id = kAbsent;
          const std::vector<float> part = run_given(*one, x, masked).output;
          for (std::size_t i = 0; i < truth.size(); ++i)
            truth[i] = truth[i] + (made.recipe.wire == DType::bf16 ? bf16_to_f32(f32_to_bf16(part[i])) : part[i]);
        }
        EXPECT_TRUE(same_bits(run_spread(spec, way, spread, x, routing), truth)) << text_of(spread);
      }
}

TEST(L12, TheIdentityHookIsTheBuiltInFinalizeOnAnyRanks) {
  for (const char* name : {"hidden-2880", "latent-1024", "hidden-2688-shared"}) {
    const LayerSpec& spec = check_shape(name);
    const std::vector<float> x = inputs_of(spec, 7);
    const Routing routing = routing_of(spec, 7);
    CheckWay builtin = fast_way(Arithmetic::exact), hooked = builtin;
    hooked.finalize = Finalize::hook;
    const std::vector<Spread> possible = spreads(spec, hooked);
    EXPECT_GE(possible.size(), kSlow ? 4u : 12u);
    for (const Spread& spread : possible)
      EXPECT_TRUE(same_bits(run_spread(spec, hooked, spread, x, routing, {.row = identity_hook}),
                            run_spread(spec, builtin, spread, x, routing)))
          << name << " " << text_of(spread);
  }
}

TEST(L12, WeightsAppliedInCombineRefuseAHook) {
  CheckWay way = fast_way(Arithmetic::exact);
  way.finalize = Finalize::hook;
  const PlanResult result =
      plan(check_shape("hidden-2880"), deployment_of(way, {.ep = 2, .strategy = "low_latency"}, 3), machine());
  ASSERT_FALSE(result.plan);
  EXPECT_EQ(result.refusals.front().code, "hook_weights_in_combine");
}

/// What hooks were told, by rank, token and k.
struct Seen {
  std::mutex mutex;
  std::vector<std::vector<std::int64_t>> choices;
};
void note_hook(void* context, const HookRow& row) noexcept {
  identity_hook(nullptr, row);
  auto& seen = *static_cast<Seen*>(context);
  const std::scoped_lock lock(seen.mutex);
  seen.choices.push_back({row.rank, row.token, row.k, static_cast<std::int64_t>(row.expert)});
}

TEST(L12, AHookIsCalledOncePerChoiceAndToldWhoseItIs) {
  const LayerSpec& spec = check_shape("intermediate-704");
  CheckWay way = fast_way(Arithmetic::exact);
  way.finalize = Finalize::hook;
  const std::vector<float> x = inputs_of(spec, 8);
  const Routing routing = routing_of(spec, 8);
  for (const Spread& spread : {Spread{.ep = 3, .strategy = "alltoall"},
                               {.ep = 3, .strategy = "alltoall_single"},
                               {.ep = 3, .strategy = "allgather"},
                               {.ep = 3, .strategy = "alltoall", .chunk_tokens = 3},
                               {.ep = 3, .strategy = "alltoall_single", .chunk_tokens = 2}}) {
    Seen seen;
    run_spread(spec, way, spread, x, routing, {.row = note_hook, .context = &seen});
    std::vector<std::vector<std::int64_t>> truth;
    const std::vector<Span> parts = shares(8, spread);
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      for (std::int64_t t = 0; t < parts[rank].count; ++t)
        for (std::int64_t k = 0; k < spec.top_k; ++k)
          for (int step = 0; step < 2; ++step)
            truth.push_back({static_cast<std::int64_t>(rank), t, k,
                             routing.index[static_cast<std::size_t>((parts[rank].begin + t) * spec.top_k + k)]});
    std::sort(seen.choices.begin(), seen.choices.end());
    std::sort(truth.begin(), truth.end());
    EXPECT_EQ(seen.choices, truth) << text_of(spread);
  }
}

TEST(L9, NoTokensOnAnyRankIsAStep) {
  const LayerSpec& spec = check_shape("hidden-2688-shared");
  for (const Spread& spread : spreads(spec, fast_way(Arithmetic::exact)))
    EXPECT_TRUE(run_spread(spec, fast_way(Arithmetic::exact), spread, {}, {}).empty()) << text_of(spread);
}

TEST(L9, SixtyFourRanksAndMoreRanksThanExperts) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const std::vector<float> x = inputs_of(spec, 70);
  const Routing routing = routing_of(spec, 70);
  const CheckWay way = fast_way(Arithmetic::exact);
  const std::vector<float> one = run_given(*make_layer(spec, way, 70), x, routing).output;
  const std::int64_t ranks = kSlow ? 16 : 64;
  EXPECT_TRUE(same_bits(run_spread(spec, way, {.ep = ranks, .strategy = "alltoall_single"}, x, routing), one));
}

/// What Layer::create throws on each rank when rank 1 is given another plan.
std::vector<std::string> texts_of(const Plan& plan, const Plan& other, std::vector<ErrorCode>* codes) {
  std::vector<std::string> texts(plan.ranks.size());
  codes->resize(plan.ranks.size());
  on_ranks(plan, 30, [&](std::shared_ptr<Group> group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    (*codes)[rank] = code_of(
        [&] { create_layer(rank == 1 ? other : plan, weights_of((rank == 1 ? other : plan).spec), {}, nullptr, {}, group); },
        &texts[rank]);
  });
  return texts;
}

TEST(L10, RanksThatDifferFailTogetherAndNameTheField) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Deployment deployment = deployment_of(fast_way(Arithmetic::bf16), {.ep = 3, .strategy = "alltoall"}, 4);
  const Plan made = plan(spec, deployment, machine()).value();
  LayerSpec fewer = spec;
  fewer.top_k = 3;
  Deployment more_tokens = deployment, other_wire = deployment;
  more_tokens.tokens = 5;
  other_wire.wishes.wire = "bf16";
  const struct {
    Plan other;
    const char* field;
  } cases[] = {{plan(fewer, deployment, machine()).value(), "spec.top_k"},
               {plan(spec, more_tokens, machine()).value(), "deployment.tokens"},
               {plan(spec, other_wire, machine()).value(), "deployment.wishes.wire"}};
  for (const auto& each : cases) {
    std::vector<ErrorCode> codes;
    const std::vector<std::string> texts = texts_of(made, each.other, &codes);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      EXPECT_EQ(codes[rank], ErrorCode::ranks_disagree) << rank << ": " << texts[rank];
      EXPECT_NE(texts[rank].find(each.field), std::string::npos) << rank << ": " << texts[rank];
    }
  }
}

TEST(L10, ARankThatCannotMakeItsLayerEndsTheMakingOfAll) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan made = plan(spec, deployment_of(fast_way(Arithmetic::exact), {.ep = 3}, 4), machine()).value();
  for (const bool early : {true, false}) {  // before the agreement: no weights; after it: weights of another layer
    std::vector<ErrorCode> codes(3);
    on_ranks(made, 30, [&](std::shared_ptr<Group> group) {
      const auto rank = static_cast<std::size_t>(group->rank());
      const auto wrong = early ? nullptr : weights_of(check_shape("hidden-2880"));
      codes[rank] = code_of([&] { create_layer(made, rank == 2 ? wrong : weights_of(spec), {}, nullptr, {}, group); });
    });
    EXPECT_EQ(codes, (std::vector<ErrorCode>{ErrorCode::rank_missing, ErrorCode::rank_missing,
                                             early ? ErrorCode::invalid_argument : ErrorCode::wrong_shape}));
  }
}

TEST(L10, APlanNeedsAGroupOfItsRanks) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan two = plan(spec, deployment_of(fast_way(Arithmetic::exact), {.ep = 2}, 4), machine()).value();
  EXPECT_EQ(code_of([&] { create_layer(two, weights_of(spec), {}, nullptr, {}); }), ErrorCode::invalid_argument);
}

TEST(L19, AForwardThatFailsOnOneRankFailsOnAllAndTheNextIsWhole) {
  const LayerSpec& spec = check_shape("hidden-2688-shared");
  for (const Spread& spread : spreads(spec, fast_way(Arithmetic::exact))) {
    if (spread.ranks() != 3 && spread.tp != 2) continue;
    SCOPED_TRACE(text_of(spread));
    const Plan made = plan(spec, deployment_of(fast_way(Arithmetic::exact), spread, 4), machine()).value();
    on_ranks(made, 30, [&](std::shared_ptr<Group> group) {
      const auto layer = create_layer(made, weights_of(spec), {}, nullptr, {}, group);
      const std::vector<float> x = inputs_of(spec, 4), many = inputs_of(spec, 5);
      for (int step = 0; step < 4; ++step) {
        const bool breaks = step % 2 == 1, mine = group->rank() == 1;
        const std::vector<float>& given = breaks && mine ? many : x;
        const CheckRun run = run_given(*layer, given, routing_of(spec, breaks && mine ? 5 : 4));
        const ErrorCode expected = !breaks ? ErrorCode::ok : mine ? ErrorCode::tokens_exceed_plan : ErrorCode::step_left;
        EXPECT_EQ(run.status.code, expected) << "step " << step << ", rank " << group->rank() << ": " << run.status.text();
      }
    });
  }
}

/// A batch hook that does nothing right from its second call on.
HookExtent tiring_hook(void* context, const Unfinalized& batch, float* out) noexcept {
  std::fill_n(out, batch.tokens * batch.width, 0.0f);
  return {++*static_cast<int*>(context) == 2 ? -1 : batch.tokens, batch.width};
}

TEST(L19, AForwardThatFailsInItsSecondChunkFailsOnAllAndTheNextIsWhole) {
  const LayerSpec& spec = check_shape("intermediate-704");
  CheckWay way = fast_way(Arithmetic::exact);
  way.finalize = Finalize::hook;
  for (const char* strategy : {"alltoall", "alltoall_single", "allgather"}) {
    const Plan made = plan(spec, deployment_of(way, {.ep = 3, .strategy = strategy, .chunk_tokens = 2}, 6), machine()).value();
    on_ranks(made, 30, [&](std::shared_ptr<Group> group) {
      int calls = group->rank() == 1 ? 0 : 2;
      const auto layer = create_layer(made, weights_of(spec), {.batch = tiring_hook, .context = &calls}, nullptr, {}, group);
      for (int forward = 0; forward < 3; ++forward) {
        const std::int64_t tokens = group->rank() == 0 ? 6 : group->rank();
        const CheckRun run = run_given(*layer, inputs_of(spec, tokens), routing_of(spec, tokens));
        const ErrorCode expected = forward > 0          ? ErrorCode::ok
                                   : group->rank() == 1 ? ErrorCode::hook_mismatch
                                                        : ErrorCode::step_left;
        EXPECT_EQ(run.status.code, expected) << strategy << ", forward " << forward << ", rank " << group->rank() << ": "
                                             << run.status.text();
        if (forward > 0) {
          EXPECT_EQ(layer->stats().tokens, tokens);
        }
      }
    });
  }
}

TEST(L19, ARankThatDoesNotComeIsNamedByTheDeadline) {
  const LayerSpec& spec = check_shape("intermediate-704");
  const Plan made = plan(spec, deployment_of(fast_way(Arithmetic::exact), {.ep = 3}, 4), machine()).value();
  on_ranks(made, 1, [&](std::shared_ptr<Group> group) {
    const auto layer = create_layer(made, weights_of(spec), {}, nullptr, {}, group);
    if (group->rank() == 2) return;
    const CheckRun run = run_given(*layer, inputs_of(spec, 4), routing_of(spec, 4));
    EXPECT_TRUE(run.status.code == ErrorCode::rank_missing || run.status.code == ErrorCode::step_left) << run.status.text();
    EXPECT_NE(run.status.text().find("2"), std::string_view::npos) << run.status.text();
  });
}

TEST(L16, WhatRanksSendFitsWhatThePlanSays) {
  const LayerSpec& spec = check_shape("intermediate-704");
  for (const Spread& spread : spreads(spec, fast_way(Arithmetic::exact))) {
    const Plan made = plan(spec, deployment_of(fast_way(Arithmetic::exact), spread, 6), machine()).value();
    const int ranks = static_cast<int>(spread.ranks());
    const auto make = [&](std::int64_t bytes) {  // on one rank of a group: opening mailboxes waits for nobody
      const auto groups = Group::threads(ranks, {.mailbox_bytes = bytes});
      static_cast<GroupImpl&>(*groups[0]).make_exchange(made);
    };
    EXPECT_NO_THROW(make(mailbox_bytes_of(made))) << text_of(spread);
    EXPECT_THROW(make(mailbox_bytes_of(made) - 1), Error) << text_of(spread);
  }
}

}  // namespace
}  // namespace motet::laws
