// SPDX-License-Identifier: Apache-2.0
// What the other ranks get when one fails at any touch of its end, of every strategy: virtual time. docs/faults.md
#include <algorithm>
#include <random>

#include "comm/testing.h"

namespace motet::faults {
namespace {

constexpr StepId kBadStep = 3, kLastStep = 5;
constexpr FabricTime kDeadline = milliseconds(10);

/// One rank's steps: kDeadline in the bad one, `later` in those after it.
void run_virtual(const StrategyTraits& strategy, Endpoint& end, FabricTime later,
                 const std::function<void(StepId, const Exchange&, const Step&)>& check) {
  Exchange exchange(strategy, shape(), end);
  for (StepId id = 1; id <= kLastStep; ++id) {
    const FabricTime begin = end.now(), lasts = id <= kBadStep ? kDeadline : later;
    if (begin == FabricTime::max()) return;  // dead
    Step step(strategy, exchange, end.rank(), id);
    step.begin(begin + lasts);
    step.run();
    check(id, exchange, step);
  }
}

/// For each touch of the faulty rank in the bad step, whether it is a post; the seed repeats them.
std::vector<bool> touches_of(const StrategyTraits& strategy, Rank faulty, std::uint64_t seed) {
  std::vector<bool> touches;
  simulate({.ranks = kRanks, .seed = seed}, [&](Endpoint& inner) {
    Watched end(inner);
    run_virtual(strategy, end, seconds(60), [&](StepId id, const Exchange&, const Step& step) {
      EXPECT_TRUE(step.right());
      if (id == kBadStep && end.rank() == faulty) touches = end.touches();
    });
  });
  return touches;
}

/// Calls each for every strategy and faulty rank.
void for_all(const std::function<void(const StrategyTraits&, Rank, std::uint64_t seed)>& each) {
  for (const StrategyTraits* strategy : all_strategies())
    for (Rank faulty = 0; faulty < kRanks; ++faulty) each(*strategy, faulty, static_cast<std::uint64_t>(faulty) + 1);
}

/// A death, or a stall that lasts so long, at every touch of a step.
void sweep(SimulatedFault::Kind kind, FabricTime lasts) {
  const bool comes_back = kind == SimulatedFault::Kind::stall && lasts < hours(1);
  for_all([&](const StrategyTraits& strategy, Rank faulty, std::uint64_t seed) {
    const std::vector<bool> touches = touches_of(strategy, faulty, seed);
    ASSERT_EQ(std::count(touches.begin(), touches.end(), true), all_posts(strategy));
    for (std::size_t after = 0; after <= touches.size(); ++after) {
      SCOPED_TRACE(std::string(strategy.name) + ", rank " + std::to_string(faulty) + " after touch " + std::to_string(after));
      const auto posts = static_cast<int>(std::count(touches.begin(), touches.begin() + static_cast<std::ptrdiff_t>(after), true));
      const SimulatedFault fault = {kind, faulty, kBadStep, lasts, static_cast<std::int64_t>(after)};
      simulate({.ranks = kRanks, .seed = seed, .faults = {fault}}, [&](Endpoint& end) {
        FabricTime begin = end.now();
        const FabricTime later = comes_back ? FabricTime(seconds(60)) : 3 * kDeadline;
        run_virtual(strategy, end, later, [&](StepId id, const Exchange& exchange, const Step& step) {
          if (end.rank() == faulty) {
            if (kind == SimulatedFault::Kind::kill) return;
            const End wanted = id < kBadStep    ? End::whole
                               : id == kBadStep ? end_when_late(posts, strategy, faulty)
                               : comes_back     ? End::whole
                                                : End::either;
            expect_end_of_faulty(wanted, exchange, step, faulty);
            return;
          }
          const FabricTime lasts = id <= kBadStep ? kDeadline : later;
          EXPECT_LE(end.now() - begin, lasts) << "the clock is exact";
          if (exchange.failure() == StepFailure::timeout) {
            EXPECT_GE(end.now() - begin, lasts / 2) << "nobody gives up early";
          }
          begin = end.now();
          const End wanted = id == kBadStep                 ? end_after(posts, strategy, end.rank())
                             : id > kBadStep && !comes_back ? End::broken
                                                            : End::whole;
          expect_end(wanted, exchange, step, faulty);
        });
      });
    }
  });
}

TEST(L19, ADeathAtAnyTouchEndsByNameWithinTheDeadline) { sweep(SimulatedFault::Kind::kill, {}); }
TEST(L19, ASilenceAtAnyTouchEndsByNameWithinTheDeadline) { sweep(SimulatedFault::Kind::stall, hours(1)); }
TEST(L19, ALateRankIsMissedByNameAndWhatItSendsThenLandsNowhere) { sweep(SimulatedFault::Kind::stall, 3 * kDeadline / 2); }

TEST(L19, ALostMessageIsMissedByNameAndTheNextStepIsWhole) {
  for_all([&](const StrategyTraits& strategy, Rank faulty, std::uint64_t seed) {
    const std::vector<bool> touches = touches_of(strategy, faulty, seed);
    for (int post = 0, after = 0; post < all_posts(strategy); ++post, ++after) {
      after = static_cast<int>(std::find(touches.begin() + after, touches.end(), true) - touches.begin());
      const Rank to = post % kRanks;
      if (to == faulty) continue;
      SCOPED_TRACE(std::string(strategy.name) + ", message " + std::to_string(post) + " of rank " + std::to_string(faulty));
      const bool dispatched = post < dispatched_posts(strategy);
      const SimulatedFault fault = {SimulatedFault::Kind::lose, faulty, kBadStep, {}, after};
      simulate({.ranks = kRanks, .seed = seed, .faults = {fault}}, [&](Endpoint& end) {
        FabricTime begin = end.now();
        run_virtual(strategy, end, seconds(60), [&](StepId id, const Exchange& exchange, const Step& step) {
          if (id == kBadStep) {
            EXPECT_LE(end.now() - begin, kDeadline);
          }
          begin = end.now();
          const bool broken = id == kBadStep && (dispatched || end.rank() == to);
          expect_end(broken ? End::broken : End::whole, exchange, step, faulty);
        });
      });
    }
  });
}

TEST(L19, ARankThatLeavesEndsTheStepOfTheOthersAtOnce) {
  for_all([&](const StrategyTraits& strategy, Rank faulty, std::uint64_t seed) {
    for (int posts = 0; posts <= all_posts(strategy); ++posts) {
      SCOPED_TRACE(std::string(strategy.name) + ", rank " + std::to_string(faulty) + " after " + std::to_string(posts));
      const SimulationWishes wishes = {.ranks = kRanks, .seed = seed};
      FabricTime left{0};
      simulate(wishes, [&](Endpoint& inner) {
        Watched end(inner);
        Exchange exchange(strategy, shape(), end);
        for (StepId id = 1; id <= kLastStep; ++id) {
          Step step(strategy, exchange, end.rank(), id);
          const FabricTime deadline = end.now() + seconds(60);
          step.begin(deadline);
          if (id != kBadStep || end.rank() != faulty) {
            step.run();
            const End wanted = id != kBadStep                                          ? End::whole
                               : end_after(posts, strategy, end.rank()) == End::broken ? End::broken
                                                                                       : End::either;
            expect_end(wanted, exchange, step, faulty);
            // The poison comes after one delay, what it makes others send after another.
            if (exchange.state() == StepState::failed) {
              EXPECT_LE(end.now() - left, 2 * wishes.most_delay);
            }
            continue;
          }
          end.strike_at({Point::At::touch, posts}, [&] { end.hold(); });
          while (exchange.poll(), !end.held()) {
            if (exchange.state() == StepState::received) step.combine();
            end.wait(deadline);
          }
          left = end.now();
          exchange.abandon();
          end.release();
        }
      });
    }
  });
}

TEST(L19, AnExchangeThatIsDestroyedInAStepEndsItForTheOthersAtOnce) {
  for_all([](const StrategyTraits& strategy, Rank faulty, std::uint64_t seed) {
    const SimulationWishes wishes = {.ranks = kRanks, .seed = seed};
    simulate(wishes, [&](Endpoint& end) {
      auto exchange = std::make_unique<Exchange>(strategy, shape(), end);
      Step step(strategy, *exchange, end.rank(), 1);
      step.begin(end.now() + seconds(60));
      if (end.rank() == faulty) return exchange.reset();
      step.run();
      expect_end(End::broken, *exchange, step, faulty);
      EXPECT_LE(end.now(), 2 * wishes.most_delay);
    });
  });
}

TEST(L19, AnyMixOfFaultsGivesRightSumsOrANameAndIsOverWithItsLastFault) {
  for (const StrategyTraits* strategy : all_strategies())
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE(std::string(strategy->name) + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      SimulationWishes wishes = {.ranks = kRanks, .seed = seed};
      for (int i = 0; i < 8; ++i)
        wishes.faults.push_back({.kind = random() % 2 == 0 ? SimulatedFault::Kind::stall : SimulatedFault::Kind::lose,
                                 .rank = 1 + static_cast<Rank>(random() % (kRanks - 1)),
                                 .step = 1 + random() % 20,
                                 .lasts = milliseconds(random() % 30),
                                 .after = static_cast<std::int64_t>(random() % 30)});
      simulate(wishes, [&](Endpoint& end) {
        Exchange exchange(*strategy, shape(), end);
        for (StepId id = 1; id <= 30; ++id) {
          const FabricTime begin = end.now();
          Step step(*strategy, exchange, end.rank(), id);
          step.begin(begin + kDeadline);
          step.run();
          expect_named(exchange, step);
          if (end.rank() == 0) {
            EXPECT_LE(end.now() - begin, kDeadline);
          }
          if (id > 25) {
            EXPECT_TRUE(step.right()) << id << ": " << name_of(exchange.failure());
          }
        }
      });
    }
}

TEST(L13, WhatCameIsGivenOutOnceAndNotByAStepThatFailed) {
  const auto ends = thread_endpoints(1, testing::kReserve);
  for (const StrategyTraits* strategy : all_strategies()) {
    ExchangeShape alone = shape();
    alone.slots = {{0, kRanks * kSlotsOfRank}};
    Exchange exchange(*strategy, alone, *ends[0]);
    std::vector<float> rows(1000), routed(1000);
    const Tokens tokens = tokens_of(*strategy, 0, 2);
    const std::byte* const x = reinterpret_cast<const std::byte*>(tokens.x.data());
    const Outgoing outgoing = {.tokens = 2, .slot = tokens.slot.data(), .weight = tokens.weight.data(), .parts = {&x, 1}};
    EXPECT_DEATH((void)exchange.received(), "state 0");
    EXPECT_DEATH(exchange.combine(rows.data(), kWidth, routed.data()), "state 0");
    exchange.begin(outgoing, ends[0]->now() + seconds(60));
    ASSERT_EQ(exchange.wait(), StepState::received);
    EXPECT_DEATH(exchange.begin(outgoing, {}), "state 2");
    exchange.combine(rows.data(), kWidth, routed.data());
    EXPECT_DEATH((void)exchange.received(), "state 3");
    EXPECT_DEATH(exchange.combine(rows.data(), kWidth, routed.data()), "state 3");
    exchange.abandon();
    EXPECT_DEATH((void)exchange.received(), "state 4");
    EXPECT_DEATH(exchange.combine(rows.data(), kWidth, routed.data()), "state 4");
  }
}

}  // namespace
}  // namespace motet::faults
