// SPDX-License-Identifier: Apache-2.0
// Every strategy on every fabric against sums made on one rank.
#include "comm/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "base/numbers.h"
#include "fabric/testing.h"
#include "motet/error.h"

namespace motet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// What all ranks know of a case.
struct Case {
  Rank ranks = 4;
  std::int32_t slots = 61;  // 61 on 4 ranks: 16, 15, 15, 15
  std::int64_t top_k = 3, width = 37, max_tokens = 9;
  DType wire = DType::f32;
  Rank tp = 1;  // ranks that hold the same slots, each with a part of every expert
  enum class Choices { random, all_to_one, nobody, twice } choices = Choices::random;

  ExchangeShape shape() const {
    ExchangeShape out{.max_tokens = max_tokens, .top_k = top_k, .width = width, .wire = wire};
    for (Rank r = 0; r < ranks; ++r) {
      const std::int32_t ep = ranks / tp, at = r / tp, begin = at * (slots / ep) + std::min(at, slots % ep);
      out.slots.push_back({begin, begin + slots / ep + (at < slots % ep ? 1 : 0)});
    }
    out.part_bytes = {width * 4, 5};  // the hidden states; five bytes that name the token
    return out;
  }
};

/// Tokens of one rank in one step, the same wherever they are made.
struct Tokens {
  std::int64_t count;
  std::vector<float> x;
  std::vector<std::byte> names;
  std::vector<std::int32_t> slot;
  std::vector<float> weight;
};
Tokens tokens_of(const Case& c, Rank rank, int step) {
  std::mt19937 random(static_cast<unsigned>(1 + rank * 7919 + step * 104729));
  Tokens out{.count = static_cast<std::int64_t>(random() % static_cast<unsigned>(c.max_tokens + 1)),
             .x = {},
             .names = {},
             .slot = {},
             .weight = {}};
  if (step % 4 == 1) out.count = c.max_tokens;               // all have as many as can be
  if (step % 4 == 2) out.count = rank == 0 ? 0 : out.count;  // one has none
  if (step % 4 == 3) out.count = 0;                          // none has any
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < out.count * c.width; ++i) out.x.push_back(normal(random));
  for (std::int64_t t = 0; t < out.count; ++t)
    for (const int byte : {rank, static_cast<int>(t), step, 7, 9}) out.names.push_back(static_cast<std::byte>(byte));
  for (std::int64_t i = 0; i < out.count * c.top_k; ++i) {
    const auto any = static_cast<std::int32_t>(random() % static_cast<unsigned>(c.slots));
    const std::int64_t k = i % c.top_k;
    switch (c.choices) {
      case Case::Choices::random:
        out.slot.push_back(random() % 5 == 0 ? -1 : any);
        break;
      case Case::Choices::all_to_one:
        out.slot.push_back(static_cast<std::int32_t>(k) % std::max(1, c.slots / c.ranks));
        break;
      case Case::Choices::nobody:
        out.slot.push_back(-1);
        break;
      case Case::Choices::twice:
        out.slot.push_back(k == 0 ? any : out.slot[static_cast<std::size_t>(i - 1)]);
        break;
    }
    out.weight.push_back(normal(random));
  }
  return out;
}

/// What `part` of expert `slot` makes of a row; not linear, and different for each.
void run_expert(std::int32_t slot, Rank part, const float* x, std::int64_t width, float* y) {
  for (std::int64_t i = 0; i < width; ++i)
    y[i] = x[i] * x[(i + slot + part) % width] + 0.125f * static_cast<float>((slot + 3 * part) % 7);
}

/// s = fp32(s + fp32(w y)) over the choices of a token that a rank holds, from zero, in order of k.
std::vector<float> sum_of(const Case& c, const Tokens& tokens, std::int64_t token, Rank rank) {
  const auto [first, end] = c.shape().slots[static_cast<std::size_t>(rank)];
  std::vector<float> sum(static_cast<std::size_t>(c.width), 0.0f), y(sum.size());
  for (std::int64_t k = 0; k < c.top_k; ++k) {
    const auto choice = static_cast<std::size_t>(token * c.top_k + k);
    if (tokens.slot[choice] < first || tokens.slot[choice] >= end) continue;
    run_expert(tokens.slot[choice], rank % c.tp, tokens.x.data() + token * c.width, c.width, y.data());
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float term = tokens.weight[choice] * y[i];
      sum[i] = sum[i] + term;
    }
  }
  return sum;
}

float rounded(DType wire, float value) { return wire == DType::bf16 ? bf16_to_f32(f32_to_bf16(value)) : value; }

/// The recipe of a strategy, replayed where all is at hand.
std::vector<float> expected(const StrategyTraits& strategy, const Case& c, const Tokens& tokens) {
  std::vector<float> out;
  const std::vector<SlotRange> slots = c.shape().slots;
  for (std::int64_t token = 0; token < tokens.count; ++token) {
    std::vector<float> sum(static_cast<std::size_t>(c.width), 0.0f), y(sum.size());
    const auto add = [&](float weight, const std::vector<float>& row) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const float term = weight * rounded(c.wire, row[i]);
        sum[i] = sum[i] + term;
      }
    };
    for (Rank rank = 0; strategy.unit != RowUnit::token_expert && rank < c.ranks; ++rank) add(1, sum_of(c, tokens, token, rank));
    for (std::int64_t k = 0; strategy.unit == RowUnit::token_expert && k < c.top_k; ++k)
      for (Rank rank = 0; rank < c.ranks; ++rank) {
        const auto choice = static_cast<std::size_t>(token * c.top_k + k);
        const auto [first, end] = slots[static_cast<std::size_t>(rank)];
        if (tokens.slot[choice] < first || tokens.slot[choice] >= end) continue;
        if (strategy.weight_site == WeightSite::combine) {
          run_expert(tokens.slot[choice], rank % c.tp, tokens.x.data() + token * c.width, c.width, y.data());
          add(tokens.weight[choice], y);
          continue;
        }
        Tokens one = tokens;
        for (std::int64_t other = 0; other < c.top_k; ++other)
          if (other != k) one.slot[static_cast<std::size_t>(token * c.top_k + other)] = -1;
        add(1, sum_of(c, one, token, rank));
      }
    out.insert(out.end(), sum.begin(), sum.end());
  }
  return out;
}

Outgoing outgoing_of(const Tokens& tokens, const std::byte* const (&parts)[2]) {
  return {.tokens = tokens.count, .slot = tokens.slot.data(), .weight = tokens.weight.data(), .parts = parts};
}

/// Runs the experts of this rank on what came; checks that each row is its token's.
std::vector<float> run_experts(const Case& c, Rank rank, int step, const Received& received) {
  std::vector<float> rows(static_cast<std::size_t>(received.rows * c.width), 0.0f), y(static_cast<std::size_t>(c.width));
  for (Rank from = 0; from < c.ranks; ++from) {
    const SourceRows& source = received.sources[static_cast<std::size_t>(from)];
    for (std::int64_t i = 0; i < source.rows; ++i) {
      const std::int64_t row = source.first + i,
                         token = received.choices == 1 && c.top_k > 1 ? source.choice[i] / c.top_k : source.choice[i];
      const std::byte* const name = source.parts[1] + source.place(i) * 5;
      EXPECT_EQ(name[0], static_cast<std::byte>(from));
      EXPECT_EQ(name[1], static_cast<std::byte>(token));
      EXPECT_EQ(name[2], static_cast<std::byte>(step));
      const float* const x = reinterpret_cast<const float*>(source.parts[0]) + source.place(i) * c.width;
      float* const sum = rows.data() + row * c.width;
      for (std::int64_t k = 0; k < received.choices; ++k) {
        const std::int32_t slot = received.slot[row * received.choices + k];
        if (slot < 0) continue;
        run_expert(slot, rank % c.tp, x, c.width, y.data());
        for (std::int64_t j = 0; j < c.width; ++j) {
          const float term = received.weight[row * received.choices + k] * y[static_cast<std::size_t>(j)];
          sum[j] = sum[j] + term;
        }
      }
    }
  }
  return rows;
}

/// One step as far as it gets; the routed sums, when it is done. A rank that leaves abandons it once it has received.
std::vector<float> run_step(Exchange& exchange, const Case& c, Endpoint& end, int step, FabricTime deadline, bool leaves = false) {
  const Tokens tokens = tokens_of(c, end.rank(), step);
  const std::byte* const parts[2] = {reinterpret_cast<const std::byte*>(tokens.x.data()), tokens.names.data()};
  exchange.begin(outgoing_of(tokens, parts), deadline);
  if (exchange.wait() != StepState::received) return {};
  if (leaves) {
    exchange.abandon();
    return {};
  }
  const std::vector<float> rows = run_experts(c, end.rank(), step, exchange.received());
  std::vector<float> routed(static_cast<std::size_t>(tokens.count * c.width), -1.0f);
  exchange.combine(rows.data(), c.width, routed.data());
  exchange.wait();
  return routed;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto same = [](float x, float y) { return bits_of_f32(x) == bits_of_f32(y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

/// Some steps on one rank; every routed sum has the bits of the recipe.
void expect_steps(const StrategyTraits& strategy, const Case& c, Endpoint& end, int steps) {
  Exchange exchange(strategy, c.shape(), end);
  const FabricTime start = end.now();
  for (int step = 0; step < steps; ++step) {
    const std::vector<float> routed = run_step(exchange, c, end, step, end.now() + seconds(60));
    ASSERT_EQ(exchange.state(), StepState::idle) << name_of(exchange.failure());
    const std::vector<float> truth = expected(strategy, c, tokens_of(c, end.rank(), step));
    ASSERT_TRUE(same_bits(routed, truth)) << strategy.name << ", rank " << end.rank() << " of " << c.ranks << ", step " << step;
  }
  EXPECT_LT(end.now() - start, seconds(30)) << "waits end when what they wait for is there";
}

/// Strategies that dispatch tokens.
std::vector<const StrategyTraits*> dispatching() {
  std::vector<const StrategyTraits*> out;
  for (const StrategyTraits* strategy : all_strategies())
    if (strategy->unit != RowUnit::none) out.push_back(strategy);
  return out;
}

class Exchanges : public ::testing::TestWithParam<testing::Way> {};

TEST_P(Exchanges, OfEveryStrategyHaveTheBitsOfTheirRecipe) {
  for (const StrategyTraits* strategy : dispatching())
    for (const Rank ranks : {1, 2, 4, 7})
      for (const DType wire : {DType::f32, DType::bf16}) {
        const Case c{.ranks = ranks, .wire = wire};
        GetParam().run(ranks, [&](Endpoint& end) { expect_steps(*strategy, c, end, 9); });
      }
}

TEST_P(Exchanges, TakeEveryKindOfChoice) {
  for (const StrategyTraits* strategy : dispatching()) {
    for (const auto choices : {Case::Choices::all_to_one, Case::Choices::nobody, Case::Choices::twice}) {
      const Case c{.choices = choices};
      GetParam().run(c.ranks, [&](Endpoint& end) { expect_steps(*strategy, c, end, 5); });
    }
    const Case few{.ranks = 5, .slots = 3, .top_k = 2, .width = 8};  // ranks without experts
    GetParam().run(few.ranks, [&](Endpoint& end) { expect_steps(*strategy, few, end, 5); });
    const Case parts{.ranks = 6, .slots = 7, .width = 9, .tp = 3};  // two groups of three
    GetParam().run(parts.ranks, [&](Endpoint& end) { expect_steps(*strategy, parts, end, 5); });
    const Case all_parts{.ranks = 3, .slots = 5, .width = 9, .wire = DType::bf16, .tp = 3};
    GetParam().run(all_parts.ranks, [&](Endpoint& end) { expect_steps(*strategy, all_parts, end, 5); });
    const Case one{.ranks = 3, .top_k = 1, .width = 1, .max_tokens = 1};
    GetParam().run(one.ranks, [&](Endpoint& end) { expect_steps(*strategy, one, end, 5); });
    const Case many{.ranks = 2, .slots = 40, .top_k = 22, .width = 16};
    GetParam().run(many.ranks, [&](Endpoint& end) { expect_steps(*strategy, many, end, 5); });
  }
}

TEST_P(Exchanges, OfTwoLayersTakeTurnsOnOneEndpoint) {
  const Case a{.width = 20}, b{.slots = 8, .top_k = 2, .width = 5};
  GetParam().run(4, [&](Endpoint& end) {
    Exchange first(*find_strategy("alltoall"), a.shape(), end), second(*find_strategy("allgather"), b.shape(), end);
    for (int step = 0; step < 6; ++step) {
      const Case& c = step % 2 == 0 ? a : b;
      Exchange& exchange = step % 2 == 0 ? first : second;
      const std::vector<float> routed = run_step(exchange, c, end, step, end.now() + seconds(60));
      ASSERT_EQ(exchange.state(), StepState::idle);
      const StrategyTraits& strategy = *find_strategy(step % 2 == 0 ? "alltoall" : "allgather");
      EXPECT_TRUE(same_bits(routed, expected(strategy, c, tokens_of(c, end.rank(), step))));
    }
  });
}

TEST_P(Exchanges, ThatOneRankLeavesEndAtOnceForAllAndTheNextStepIsWhole) {
  const Case c{};
  for (const StrategyTraits* strategy : dispatching()) {
    GetParam().run(c.ranks, [&](Endpoint& end) {
      Exchange exchange(*strategy, c.shape(), end);
      const FabricTime begin = end.now(), deadline = begin + seconds(60);
      for (int step = 0; step < 6; ++step) {
        const bool broken = step == 1 || step == 4;
        run_step(exchange, c, end, step, deadline, broken && end.rank() == 2);
        EXPECT_EQ(exchange.state(), broken ? StepState::failed : StepState::idle) << step;
        if (!broken || end.rank() == 2) continue;
        EXPECT_EQ(exchange.failure(), StepFailure::poisoned);
        EXPECT_NE(std::find(exchange.missing().begin(), exchange.missing().end(), 2), exchange.missing().end());
      }
      EXPECT_LT(end.now() - begin, seconds(30));
    });
  }
}

TEST_P(Exchanges, WithRanksOfAnotherContractFailTogether) {
  GetParam().run(3, [](Endpoint& end) {
    const Case c{.ranks = 3};
    ExchangeShape shape = c.shape();
    shape.contract = end.rank() == 1 ? 8 : 7;
    Exchange exchange(*find_strategy("alltoall"), shape, end);
    run_step(exchange, c, end, 0, end.now() + seconds(60));
    ASSERT_EQ(exchange.state(), StepState::failed);
    EXPECT_TRUE(exchange.failure() == StepFailure::contract_mismatch || exchange.failure() == StepFailure::poisoned);
    if (end.rank() == 1) {
      EXPECT_EQ(exchange.failure(), StepFailure::contract_mismatch);
    }
  });
}

TEST_P(Exchanges, CountTheBytesThatWentToEachRank) {
  GetParam().run(2, [](Endpoint& end) {
    const Case c{.ranks = 2, .slots = 2, .top_k = 1, .width = 16, .max_tokens = 4, .choices = Case::Choices::all_to_one};
    Exchange exchange(*find_strategy("alltoall"), c.shape(), end);
    run_step(exchange, c, end, 1, end.now() + seconds(60));  // four tokens, all for rank 0
    // Header, choices, slots, weights, 4 x 64 bytes of hidden states, 4 x 5 bytes of names; back: header, and for what came 64
    // each.
    EXPECT_EQ(exchange.bytes_sent(0), 64 * 4 + 256 + 64 + (end.rank() == 0 ? 64 + 256 : 64));
    EXPECT_EQ(exchange.bytes_sent(1), end.rank() == 0 ? 64 + 64 + 256 : 64 + 64);
  });
}

/// Rows that rank `rank` gives for tokens that all have.
std::vector<float> sums_of_rank(Rank rank, std::int64_t tokens, std::int64_t width) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(tokens * width));
  std::generate(out.begin(), out.end(), [&] { return normal(random); });
  return out;
}

TEST_P(Exchanges, OfReplicatedTokensAddTheSumsOfAllRanksInPlace) {
  for (const Rank ranks : {1, 2, 5})
    for (const DType wire : {DType::f32, DType::bf16})
      GetParam().run(ranks, [&](Endpoint& end) {
        const Case c{.ranks = ranks, .wire = wire};
        ExchangeShape shape = c.shape();
        shape.part_bytes.clear();
        Exchange exchange(*find_strategy("allreduce"), shape, end);
        for (const std::int64_t tokens : {9, 0, 4}) {
          std::vector<float> truth(static_cast<std::size_t>(tokens * c.width), 0.0f);
          for (Rank rank = 0; rank < ranks; ++rank) {
            const std::vector<float> part = sums_of_rank(rank, tokens, c.width);
            for (std::size_t i = 0; i < truth.size(); ++i) truth[i] = truth[i] + rounded(wire, part[i]);
          }
          std::vector<float> sums = sums_of_rank(end.rank(), tokens, c.width);
          exchange.begin({.tokens = tokens}, end.now() + seconds(60));
          ASSERT_EQ(exchange.wait(), StepState::received);
          EXPECT_EQ(exchange.received().rows, 0);
          exchange.combine(sums.data(), c.width, sums.data());
          ASSERT_EQ(exchange.wait(), StepState::idle) << name_of(exchange.failure());
          EXPECT_TRUE(same_bits(sums, truth)) << ranks << " ranks, " << tokens << " tokens";
        }
        if (ranks == 1) return;
        std::vector<float> sums(static_cast<std::size_t>(3 * c.width));
        exchange.begin({.tokens = end.rank() == 0 ? 3 : 2}, end.now() + seconds(60));  // not the same tokens
        exchange.wait();
        exchange.combine(sums.data(), c.width, sums.data());
        EXPECT_EQ(exchange.wait(), StepState::failed);
        EXPECT_TRUE(exchange.failure() == StepFailure::contract_mismatch || exchange.failure() == StepFailure::poisoned);
      });
}

TEST_P(Exchanges, OfLayersThatShareMailboxesOpenThemOnce) {
  const Case small{.width = 5, .max_tokens = 3}, large{.width = 20};
  GetParam().run(3, [&](Endpoint& end) {
    ExchangeBoxes boxes;
    Case a = large, b = small;
    a.ranks = b.ranks = 3;
    Exchange first(*find_strategy("alltoall"), a.shape(), end, &boxes);
    const ExchangeBoxes after_first = boxes;
    Exchange second(*find_strategy("low_latency"), b.shape(), end, &boxes);
    EXPECT_EQ(boxes.combine, after_first.combine);
    for (int step = 0; step < 6; ++step) {
      const Case& c = step % 2 == 0 ? a : b;
      const StrategyTraits& strategy = *find_strategy(step % 2 == 0 ? "alltoall" : "low_latency");
      const std::vector<float> routed = run_step(step % 2 == 0 ? first : second, c, end, step, end.now() + seconds(60));
      EXPECT_TRUE(same_bits(routed, expected(strategy, c, tokens_of(c, end.rank(), step)))) << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Exchanges, ::testing::ValuesIn(testing::ways()), [](const auto& info) { return info.param.name; });

/// Routed sums of rank 0's tokens in some steps.
std::vector<std::vector<float>> sums_of_rank_0(const StrategyTraits& strategy, const Case& c) {
  std::vector<std::vector<float>> result;
  testing::run_threads(c.ranks, [&](Endpoint& end) {
    Exchange exchange(strategy, c.shape(), end);
    for (int step = 0; step < 6; ++step) {
      const std::vector<float> routed = run_step(exchange, c, end, step, end.now() + seconds(60));
      ASSERT_EQ(exchange.state(), StepState::idle);
      if (end.rank() == 0) result.push_back(routed);
    }
  });
  return result;
}

TEST(Exchange, OfChoicesHasTheBitsOfOneRankOnAnyNumberOfRanks) {
  const auto one = sums_of_rank_0(*find_strategy("alltoall"), {.ranks = 1});
  ASSERT_EQ(one.size(), 6u);
  for (const Rank ranks : {1, 2, 7})
    for (const char* name : {"alltoall_single", "low_latency"}) {
      const auto many = sums_of_rank_0(*find_strategy(name), {.ranks = ranks});
      ASSERT_EQ(many.size(), one.size());
      for (std::size_t step = 0; step < one.size(); ++step) EXPECT_TRUE(same_bits(many[step], one[step])) << name << " " << ranks;
    }
}

TEST(Exchange, OfLongMessagesBringsEveryRowAndSum) {
  const std::int64_t tokens = 70, width = 61000;  // messages of 8.5 MB, sums of 17 MB
  const ExchangeShape shape{
      .max_tokens = tokens, .width = width, .wire = DType::bf16, .slots = {{0, 1}, {0, 1}}, .part_bytes = {width * 2}};
  const auto endpoints = thread_endpoints(2, std::int64_t{1} << 29);
  const auto hidden_of = [&](Rank rank) {
    std::vector<std::byte> hidden;
    for (std::int64_t t = 0; t < tokens; ++t) hidden.insert(hidden.end(), width * 2, static_cast<std::byte>(100 * rank + t));
    return hidden;
  };
  const auto value = [](std::int64_t token, std::int64_t i) { return static_cast<float>((token + i) % 251); };  // exact in bf16
  const auto body = [&](Endpoint& end) {
    Exchange exchange(*find_strategy("alltoall"), shape, end);
    const std::vector<std::byte> hidden = hidden_of(end.rank());
    const std::vector<std::int32_t> slot(tokens, 0);
    const std::vector<float> weight(tokens, 1.0f);
    const std::byte* const part = hidden.data();
    exchange.begin({.tokens = tokens, .slot = slot.data(), .weight = weight.data(), .parts = {&part, 1}}, end.now() + seconds(60));
    ASSERT_EQ(exchange.wait(), StepState::received);
    std::vector<float> rows;
    for (Rank from = 0; from < 2; ++from) {
      const SourceRows& source = exchange.received().sources[static_cast<std::size_t>(from)];
      ASSERT_EQ(source.rows, tokens);
      EXPECT_EQ(std::memcmp(source.parts[0], hidden_of(from).data(), hidden.size()), 0);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t i = 0; i < width; ++i) rows.push_back(static_cast<float>(end.rank() + 1) * value(t, i));
    }
    std::vector<float> routed(static_cast<std::size_t>(tokens * width), -1.0f);
    exchange.combine(rows.data(), width, routed.data());
    ASSERT_EQ(exchange.wait(), StepState::idle);
    std::int64_t wrong = 0;
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < width; ++i) wrong += routed[static_cast<std::size_t>(t * width + i)] != 3 * value(t, i);
    EXPECT_EQ(wrong, 0);
  };
  std::thread other([&] { body(*endpoints[1]); });
  body(*endpoints[0]);
  other.join();
}

TEST(Exchange, RefusesMoreThanMemoryHolds) {
  const auto endpoints = thread_endpoints(2, testing::kReserve);
  Case c{.ranks = 2};
  c.max_tokens = std::int64_t{1} << 61;
  EXPECT_THROW(Exchange(*find_strategy("alltoall"), c.shape(), *endpoints[0]), Error);
  c.max_tokens = std::int64_t{1} << 31;  // choices are counted in 32 bits
  EXPECT_THROW(Exchange(*find_strategy("alltoall"), c.shape(), *endpoints[0]), Error);
  c.max_tokens = std::int64_t{1} << 20;
  EXPECT_THROW(Exchange(*find_strategy("alltoall"), c.shape(), *endpoints[0]), Error);
}

TEST(Exchange, IsNotFailedByAStepThatAnotherRankLeavesLater) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const Case c{};
    simulate({.ranks = c.ranks, .seed = seed}, [&](Endpoint& end) {
      Exchange exchange(*find_strategy("alltoall"), c.shape(), end);
      for (int step = 0; step < 40; ++step) {
        if (step % 2 == 1 && end.rank() == step / 2 % 4) {
          const std::byte* const parts[2] = {};
          exchange.begin({.parts = parts}, end.now() + seconds(60));
          exchange.abandon();
          continue;
        }
        run_step(exchange, c, end, step, end.now() + seconds(60));
        EXPECT_EQ(exchange.state(), step % 2 == 1 ? StepState::failed : StepState::idle) << "seed " << seed << ", step " << step;
      }
    });
  }
}

/// What rank 0 makes of a message of rows from rank 1: the one that it sent itself there, changed.
StepFailure failure_by(const std::function<void(std::byte* message)>& change) {
  StepFailure failure = StepFailure::none;
  testing::run_threads(2, [&](Endpoint& end) {
    const Case c{.ranks = 2, .top_k = 1, .choices = Case::Choices::all_to_one};
    ExchangeShape shape = c.shape();
    shape.forward_tokens = 3 * c.max_tokens;
    shape.slots = {{0, 61}, {0, 61}};  // both hold all: a message is what the other would send
    const FabricTime deadline = end.now() + seconds(60);
    if (end.rank() == 1) {
      const ExchangeSizes sizes = exchange_sizes(*find_strategy("alltoall"), {.ranks = 2,
                                                                              .holders = 2,
                                                                              .tokens = c.max_tokens,
                                                                              .top_k = c.top_k,
                                                                              .width = c.width,
                                                                              .wire = c.wire,
                                                                              .part_bytes = shape.part_bytes});
      const int box = end.open({"dispatched rows", sizes.dispatch_bytes});
      std::optional<ByteSpan> theirs;
      while (!(theirs = end.arrived(box, 0, 1)) && end.now() < deadline) end.wait(deadline);
      ASSERT_TRUE(theirs.has_value());
      std::byte* const slot = end.slot(box, 0, 1);
      std::copy_n(theirs->data, theirs->bytes, slot);
      change(slot);
      end.post(box, 0, 1, theirs->bytes);
      return;
    }
    Exchange exchange(*find_strategy("alltoall"), shape, end);
    const Tokens tokens = tokens_of(c, 0, 1);  // as many as can be
    const std::byte* const parts[2] = {reinterpret_cast<const std::byte*>(tokens.x.data()), tokens.names.data()};
    Outgoing outgoing = outgoing_of(tokens, parts);
    outgoing.chunk = 1;
    outgoing.forward_tokens = 2 * c.max_tokens;
    exchange.begin(outgoing, deadline);
    if (exchange.wait() == StepState::received) {
      EXPECT_GE(exchange.forward_tokens(), 2 * c.max_tokens);
    }
    failure = exchange.failure();
  });
  return failure;
}

template <class T>
std::function<void(std::byte*)> with(std::int64_t offset, T value) {
  return [=](std::byte* message) { std::memcpy(message + offset, &value, sizeof value); };
}

TEST(Exchange, TakesNoMessageThatCannotBe) {
  constexpr std::int64_t kRows = 8, kChunk = 16, kForwardTokens = 24, kItems = 64;
  EXPECT_EQ(failure_by([](std::byte*) {}), StepFailure::none);
  EXPECT_EQ(failure_by(with(kForwardTokens, std::int64_t{27})), StepFailure::none);
  const std::function<void(std::byte*)> changes[] = {
      with(0, std::uint64_t{1}),
      with(kRows, std::int64_t{1} << 28),  // more than the message holds
      with(kRows, std::int64_t{-1}),
      with(kChunk, std::int64_t{0}),  // of another chunk
      with(kForwardTokens, std::int64_t{28}),
      with(kForwardTokens, std::int64_t{-1}),
      with(kItems, std::int32_t{-1}),     // tokens that are none
      with(kItems, std::int32_t{5}),      // the same twice, or backwards
      with(kItems + 32, std::int32_t{9})  // beyond the last
  };
  for (const auto& change : changes) EXPECT_EQ(failure_by(change), StepFailure::contract_mismatch) << &change - changes;
}

/// Every rank's failures in each of four steps, in virtual time, with one fault.
std::vector<std::vector<StepFailure>> failures_under(const StrategyTraits& strategy, SimulatedFault fault, double loss = 0) {
  const Case c{};
  std::vector<std::vector<StepFailure>> result(static_cast<std::size_t>(c.ranks));
  simulate({.ranks = c.ranks, .seed = 11, .loss = loss, .faults = {fault}}, [&](Endpoint& end) {
    Exchange exchange(strategy, c.shape(), end);
    for (int step = 0; step < 4; ++step) {
      const FabricTime begin = end.now();
      run_step(exchange, c, end, step, begin + milliseconds(10));
      result[static_cast<std::size_t>(end.rank())].push_back(exchange.failure());
      if (exchange.state() != StepState::failed) continue;
      if (end.rank() != fault.rank) {
        EXPECT_LE(end.now() - begin, milliseconds(11)) << "within the deadline";
        EXPECT_FALSE(exchange.missing().empty());
      }
      return;
    }
  });
  return result;
}

TEST(Exchange, WithAKilledRankEndsOnAllOthersWithinTheDeadlineByName) {
  for (const StrategyTraits* strategy : dispatching())
    for (StepId step = 1; step <= 4; ++step) {
      const auto failures = failures_under(*strategy, {SimulatedFault::Kind::kill, 1, step});
      for (const Rank rank : {0, 2, 3}) {
        const auto& mine = failures[static_cast<std::size_t>(rank)];
        ASSERT_EQ(mine.size(), step) << strategy->name;
        EXPECT_TRUE(mine.back() == StepFailure::timeout || mine.back() == StepFailure::poisoned) << name_of(mine.back());
        EXPECT_EQ(std::count(mine.begin(), mine.end() - 1, StepFailure::none), static_cast<std::ptrdiff_t>(step) - 1);
      }
    }
}

TEST(Exchange, WithAStalledRankEndsOnAllOthersWithinTheDeadlineByName) {
  for (const StrategyTraits* strategy : dispatching())
    for (StepId step = 1; step <= 4; ++step) {
      const auto failures = failures_under(*strategy, {SimulatedFault::Kind::stall, 1, step, milliseconds(50)});
      for (const Rank rank : {0, 2, 3})
        EXPECT_NE(failures[static_cast<std::size_t>(rank)].back(), StepFailure::none) << strategy->name;
    }
}

TEST(Exchange, WithLostMessagesEndsByName) {
  for (const StrategyTraits* strategy : dispatching()) {
    const auto failures = failures_under(*strategy, {SimulatedFault::Kind::stall, 0, 1000}, 0.05);
    std::int64_t failed = 0;
    for (const auto& mine : failures) failed += mine.back() != StepFailure::none;
    EXPECT_GE(failed, 3) << strategy->name
                         << ": a loss ends the step of one rank by the deadline and those of the others by poison";
  }
}

TEST(Strategies, AreListedInSelectionOrder) {
  std::vector<std::string> names;
  for (const StrategyTraits* strategy : all_strategies()) names.emplace_back(strategy->name);
  EXPECT_EQ(names, (std::vector<std::string>{"alltoall", "alltoall_single", "allgather", "low_latency", "allreduce"}));
  EXPECT_EQ(find_strategy("no_such"), nullptr);
}

}  // namespace
}  // namespace motet
