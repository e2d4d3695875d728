// SPDX-License-Identifier: Apache-2.0
// Groups that are asked for what cannot be, or whose ranks do not keep together.
#include "runtime/group.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "motet/verify.h"
#include "runtime/check_runs.h"

namespace motet {
namespace {

Plan plan_of_ranks(std::int64_t ranks) {
  Deployment deployment;
  deployment.tokens = 4;
  deployment.ep = ranks;
  deployment.input = DType::f32;
  deployment.wishes.threads = 1;
  return plan(check_shape("intermediate-704"), deployment, Environment::probe()).value();
}

/// The code that each rank's body ends with.
std::vector<ErrorCode> codes_of(int ranks, const GroupOptions& options, const std::function<void(GroupImpl&)>& body) {
  std::vector<ErrorCode> codes(static_cast<std::size_t>(ranks), ErrorCode::ok);
  std::vector<std::thread> threads;
  for (const auto& group : Group::threads(ranks, options))
    threads.emplace_back([&body, &codes, group] {
      try {
        body(static_cast<GroupImpl&>(*group));
      } catch (const Error& error) {
        codes[static_cast<std::size_t>(group->rank())] = error.code();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return codes;
}

TEST(Group, RefusesOptionsThatCannotBe) {
  const auto refused = [](int ranks, const GroupOptions& options) {
    try {
      Group::threads(ranks, options);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::ok;
  };
  EXPECT_EQ(refused(1, {}), ErrorCode::ok);
  EXPECT_EQ(refused(0, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused(-1, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused(1 << 20, {}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused(2, {.mailbox_bytes = -1}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused(2, {.deadline = 0}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused(2, {.deadline = 1e30}), ErrorCode::invalid_argument);
  EXPECT_EQ(refused(2, {.creation_deadline = -1}), ErrorCode::invalid_argument);
}

TEST(Group, IsOfNoUseAfterItsMailboxesWereRefused) {
  const Plan made = plan_of_ranks(2);
  const GroupOptions small{.mailbox_bytes = mailbox_bytes_of(made) / 2, .deadline = 20, .creation_deadline = 20};
  for (const bool gathers : {false, true}) {
    const auto codes = codes_of(2, small, [&](GroupImpl& group) {
      EXPECT_THROW(group.make_exchange(made), Error);
      if (gathers)
        group.gather({}, 1);
      else
        group.agree(made);
    });
    EXPECT_EQ(codes, (std::vector<ErrorCode>{ErrorCode::would_not_fit, ErrorCode::would_not_fit}));
  }
}

std::vector<std::byte> bytes_of_rank(int rank) { return std::vector<std::byte>(static_cast<std::size_t>(rank + 1), std::byte{7}); }

TEST(Group, GathersOnRankZeroAgainAndAgain) {
  const auto codes = codes_of(3, {.mailbox_bytes = 1 << 20}, [](GroupImpl& group) {
    for (const std::int64_t most : {3, 3, 100}) {
      const auto all = group.gather(bytes_of_rank(group.rank()), most);
      ASSERT_EQ(all.size(), group.rank() == 0 ? 3u : 0u);
      for (std::size_t from = 0; from < all.size(); ++from) EXPECT_EQ(all[from], bytes_of_rank(static_cast<int>(from)));
    }
  });
  EXPECT_EQ(codes, std::vector<ErrorCode>(3, ErrorCode::ok));
}

TEST(Group, GathersNothingFromARankThatGivesTooMuchOrDoesNotCome) {
  const auto codes = codes_of(3, {.mailbox_bytes = 1 << 20, .deadline = 0.5}, [](GroupImpl& group) {
    if (group.rank() == 1) return;
    const auto all = group.gather(std::vector<std::byte>(group.rank() == 2 ? 4 : 2), 3);
    ASSERT_EQ(all.size(), 3u);  // rank 0
    EXPECT_EQ(all[0].size(), 2u);
    EXPECT_TRUE(all[1].empty() && all[2].empty());
  });
  EXPECT_EQ(codes, (std::vector<ErrorCode>{ErrorCode::ok, ErrorCode::ok, ErrorCode::invalid_argument}));
}

TEST(Group, HasEachRankSayWhereItsPoolStandsAmongThoseOfTheHost) {
  codes_of(3, {}, [](GroupImpl& group) {
    EXPECT_EQ(group.pool_share().pool, group.rank());
    EXPECT_EQ(group.pool_share().pools, 3);
  });
}

}  // namespace
}  // namespace motet
