// SPDX-License-Identifier: Apache-2.0
// What every fabric promises, on every fabric.
#include "fabric/fabric.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "fabric/testing.h"
#include "motet/error.h"

namespace motet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using testing::Came;
using testing::kReserve;
using testing::receive;
using testing::run_processes;
using testing::slot_within;
using testing::Way;
using testing::ways;

std::vector<std::byte> message_of(Rank from, Rank to, StepId step, std::int64_t longest) {
  std::mt19937 random(static_cast<unsigned>(from * 1009 + to * 31 + static_cast<int>(step)));
  std::vector<std::byte> out(random() % 3 == 0 ? 0 : random() % static_cast<unsigned>(longest + 1));
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

class Fabrics : public ::testing::TestWithParam<Way> {};

TEST_P(Fabrics, CarryEveryMessageOfEveryStepUnchanged) {
  for (const Rank ranks : {1, 2, 5, 16}) {
    GetParam().run(ranks, [&](Endpoint& end) {
      EXPECT_EQ(end.ranks(), ranks);
      const std::int64_t longest[] = {0, 300, 1};
      int boxes[3];
      for (int b = 0; b < 3; ++b) boxes[b] = end.open({"a test", longest[b]});
      for (StepId step = 1; step <= 40; ++step) {
        const FabricTime deadline = end.now() + seconds(60);
        for (int b = 0; b < 3; ++b) {
          for (Rank to = 0; to < ranks; ++to) {
            std::byte* const slot = slot_within(end, boxes[b], to, step, deadline);
            ASSERT_NE(slot, nullptr);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot) % 128, 0u);
            const std::vector<std::byte> message = message_of(end.rank() + b, to, step, longest[b]);
            std::copy(message.begin(), message.end(), slot);
            end.post(boxes[b], to, step, static_cast<std::int64_t>(message.size()));
          }
        }
        for (int b = 2; b >= 0; --b) {
          for (Rank from = ranks - 1; from >= 0; --from) {
            ByteSpan got;
            ASSERT_EQ(receive(end, boxes[b], from, step, deadline, &got), Came::message);
            const std::vector<std::byte> expected = message_of(from + b, end.rank(), step, longest[b]);
            ASSERT_EQ(std::vector<std::byte>(got.data, got.data + got.bytes), expected) << ranks << " " << from << " " << step;
          }
        }
        end.finish(step);
      }
    });
  }
}

TEST_P(Fabrics, AnEmptyMessageIsAMessageAndAMissingOneIsNot) {
  GetParam().run(2, [](Endpoint& end) {
    const int box = end.open({"a test", 8});
    const FabricTime deadline = end.now() + milliseconds(200);
    if (end.rank() == 0) {
      ASSERT_NE(slot_within(end, box, 1, 1, deadline), nullptr);
      end.post(box, 1, 1, 0);
      EXPECT_EQ(receive(end, box, 1, 1, deadline), Came::nothing);
      EXPECT_GE(end.now(), deadline);
    } else {
      ByteSpan got{nullptr, -1};
      EXPECT_EQ(receive(end, box, 0, 1, deadline, &got), Came::message);
      EXPECT_EQ(got.bytes, 0);
    }
  });
}

TEST_P(Fabrics, ASlotWaitsForItsReader) {
  GetParam().run(2, [](Endpoint& end) {
    const int box = end.open({"a test", 8});
    const FabricTime deadline = end.now() + seconds(60);
    if (end.rank() == 0) {
      for (StepId step = 1; step <= 2; ++step) {
        std::memset(slot_within(end, box, 1, step, deadline), static_cast<int>(step), 8);
        end.post(box, 1, step, 8);
        end.finish(step);
      }
      EXPECT_EQ(slot_within(end, box, 1, 3, end.now() + milliseconds(20)), nullptr) << "step 1 may still be read";
      end.post(end.open({"go on", 1}), 1, 3, 0);  // tells the reader
      std::byte* const slot = slot_within(end, box, 1, 3, deadline);
      ASSERT_NE(slot, nullptr);
      std::memset(slot, 3, 8);
      end.post(box, 1, 3, 8);
    } else {
      const int go_on = end.open({"go on", 1});
      ByteSpan first;
      ASSERT_EQ(receive(end, box, 0, 1, deadline, &first), Came::message);
      ASSERT_EQ(receive(end, go_on, 0, 3, deadline), Came::message);
      EXPECT_EQ(first.data[0], std::byte{1}) << "not overwritten";
      end.finish(1);
      ByteSpan third;
      ASSERT_EQ(receive(end, box, 0, 3, deadline, &third), Came::message);
      EXPECT_EQ(third.data[7], std::byte{3});
    }
  });
}

TEST_P(Fabrics, PoisonEndsTheStepOfTheOthersAtOnceAndTheNextStepIsClean) {
  GetParam().run(4, [](Endpoint& end) {
    const int box = end.open({"a test", 8});
    const FabricTime begin = end.now(), deadline = begin + seconds(60);
    if (end.rank() == 2) {
      end.poison(1, end.rank());
    } else {
      EXPECT_EQ(receive(end, box, 2, 1, deadline), Came::poison);
      EXPECT_EQ(end.poisoned(2, 1), 2) << "the cause";
      EXPECT_LT(end.now() - begin, seconds(20));
      end.poison(1, end.rank());
    }
    for (StepId step = 2; step <= 4; ++step) {
      for (Rank to = 0; to < 4; ++to) {
        ASSERT_NE(slot_within(end, box, to, step, deadline), nullptr);
        end.post(box, to, step, static_cast<std::int64_t>(step));
      }
      for (Rank from = 0; from < 4; ++from) {
        ByteSpan got;
        ASSERT_EQ(receive(end, box, from, step, deadline, &got), Came::message);
        EXPECT_EQ(got.bytes, static_cast<std::int64_t>(step));
      }
      end.finish(step);
    }
  });
}

TEST_P(Fabrics, MessagesComeBeforeThePoisonThatFollowsThem) {
  GetParam().run(2, [](Endpoint& end) {
    const int box = end.open({"a test", 8});
    const FabricTime deadline = end.now() + seconds(60);
    if (end.rank() == 0) {
      ASSERT_NE(slot_within(end, box, 1, 1, deadline), nullptr);
      end.post(box, 1, 1, 1);
      end.poison(1, end.rank());
    } else {
      while (!end.poisoned(0, 1) && end.now() < deadline) end.wait(deadline);
      EXPECT_TRUE(end.arrived(box, 0, 1).has_value());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Fabrics, ::testing::ValuesIn(ways()), [](const auto& info) { return info.param.name; });

TEST(Fabrics, AreListedInSelectionOrder) {
  std::vector<std::string> names;
  for (const FabricTraits* fabric : all_fabrics()) names.emplace_back(fabric->name);
  EXPECT_EQ(names, (std::vector<std::string>{"threads", "shm", "mpi", "simulated"}));
}

TEST(ThreadFabric, RefusesWhatWasNotReservedWithTheSizes) {
  EXPECT_THROW(thread_endpoints(4, 100), Error);
  const auto endpoints = thread_endpoints(4, 1 << 16);
  try {
    endpoints[0]->open({"rows", 1 << 20});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::would_not_fit);
    EXPECT_NE(std::string(error.what()).find("mailbox 'rows' has 32 slots (2 x 4 ranks x 4) of 1048576 bytes"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(endpoints[0]->open({"rows", INT64_MAX / 4}), Error);
  EXPECT_EQ(endpoints[0]->open({"rows", 64}), 0) << "a refusal leaves nothing behind";
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

TEST(ThreadFabric, AWaitingRankUsesNoProcessor) {
  const auto endpoints = thread_endpoints(2, kReserve);
  const double before = cpu_seconds();
  const FabricTime until = endpoints[0]->now() + milliseconds(300);
  endpoints[0]->wait(until);
  EXPECT_GE(endpoints[0]->now(), until);
  EXPECT_LT(cpu_seconds() - before, 0.03) << "a spinning one would have used ten times as much";
}

/// Rank 1 says that it is there, then raises the signal in itself; the others wait for more from it. A stopped one goes on when
/// they have given up, and sends what it had not sent: nobody takes it for anything newer.
void expect_silence_after(int signal) {
  const auto statuses = run_processes(
      3,
      [signal](Endpoint& end) {
        const int box = end.open({"a test", 8});
        const FabricTime deadline = end.now() + seconds(60);
        for (Rank to = 0; to < 3; ++to) {
          ASSERT_NE(slot_within(end, box, to, 1, deadline), nullptr);
          end.post(box, to, 1, 0);
        }
        ASSERT_EQ(receive(end, box, 1, 1, deadline), Came::message);
        if (end.rank() == 1) {
          raise(signal);
          for (Rank to = 0; to < 3; ++to) end.post(box, to, 2, 0);
          return;
        }
        EXPECT_EQ(receive(end, box, 1, 2, end.now() + milliseconds(300)), Came::nothing);
        end.poison(2, 1);
        EXPECT_EQ(receive(end, box, 1, 4, end.now() + milliseconds(700)), Came::nothing) << "the slot of step 2 serves step 4";
      },
      [signal](const std::vector<pid_t>& children) {
        int status = 0;
        if (signal != SIGSTOP) return;
        waitpid(children[1], &status, WUNTRACED);
        EXPECT_TRUE(WIFSTOPPED(status));
        usleep(500000);
        kill(children[1], SIGCONT);
      });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(statuses[2], 0);
  EXPECT_EQ(WIFSIGNALED(statuses[1]), signal == SIGKILL);
}
TEST(ShmFabric, AKilledProcessIsSilentAndNobodyWaitsForever) { expect_silence_after(SIGKILL); }
TEST(ShmFabric, AStoppedProcessIsSilentAndComesTooLate) { expect_silence_after(SIGSTOP); }

TEST(ShmFabric, RefusesWhatTheSystemDoesNotGive) {
  EXPECT_THROW(shm_segment(2, -1), Error);
  EXPECT_THROW(shm_endpoint(-1, kReserve, 0, 2), Error);
}

// --- Only the simulated fabric ----------------------------------------------------------------------------------------------

/// Everybody sends to everybody for some steps; a line for each thing that came, in order.
std::vector<std::string> log_of(const SimulationWishes& wishes) {
  std::vector<std::string> log;
  std::mutex mutex;
  simulate(wishes, [&](Endpoint& end) {
    const int box = end.open({"a test", 8});
    for (StepId step = 1; step <= 5; ++step) {
      const FabricTime deadline = end.now() + milliseconds(10);
      bool whole = true;
      for (Rank to = 0; to < end.ranks() && whole; ++to) {
        whole = slot_within(end, box, to, step, deadline) != nullptr;
        if (whole) end.post(box, to, step, 0);
      }
      for (Rank from = 0; from < end.ranks() && whole; ++from) {
        const Came came = receive(end, box, from, step, deadline);
        whole = came == Came::message;
        const std::lock_guard lock(mutex);
        log.push_back(std::to_string(end.now().count()) + ": " + std::to_string(end.rank()) + " from " + std::to_string(from) +
                      (came == Came::message  ? " message"
                       : came == Came::poison ? " poison"
                                              : " nothing"));
      }
      if (!whole) return end.poison(step, end.rank());
      end.finish(step);
    }
  });
  return log;
}
std::int64_t count(const std::vector<std::string>& log, const std::string& words) {
  return std::count_if(log.begin(), log.end(), [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

TEST(SimulatedFabric, ASeedRepeatsEverythingAndAnotherSeedDoesNot) {
  const auto log = log_of({.ranks = 6, .seed = 7});
  EXPECT_EQ(count(log, "message"), 5 * 36);
  EXPECT_EQ(log, log_of({.ranks = 6, .seed = 7}));
  EXPECT_NE(log, log_of({.ranks = 6, .seed = 8}));
}

TEST(SimulatedFabric, LostMessagesAreNeverReceivedAndNobodyWaitsForever) {
  const auto log = log_of({.ranks = 4, .seed = 1, .loss = 0.05});
  EXPECT_GE(count(log, "nothing"), 1);
  EXPECT_LT(count(log, "message"), 5 * 16);
}

TEST(SimulatedFabric, AKilledRankIsSilentFromThatStepOn) {
  const auto log = log_of({.ranks = 3, .seed = 2, .faults = {{SimulatedFault::Kind::kill, 1, 3}}});
  EXPECT_GE(count(log, "0 from 1 nothing") + count(log, "2 from 1 nothing"), 1);
  EXPECT_EQ(count(log, "0 from 1 message") + count(log, "2 from 1 message"), 2 * 2);
}

TEST(SimulatedFabric, AFaultStrikesAtThatTouchOfTheStep) {
  for (const auto kind : {SimulatedFault::Kind::kill, SimulatedFault::Kind::lose}) {
    const auto got = [&](StepId step, std::int64_t after) {
      const auto log = log_of({.ranks = 3, .seed = 2, .faults = {{.kind = kind, .rank = 1, .step = step, .after = after}}});
      return std::pair(count(log, " 0 from 1 message"), count(log, " 2 from 1 message"));
    };
    // Rank 1 asks for a slot and posts, for each rank in turn; one step has 6 of these touches and some looks for messages.
    EXPECT_EQ(got(2, 1).first, 1) << "the post to rank 0";
    EXPECT_EQ(got(2, 2).second, 1) << "after that post";
    EXPECT_EQ(got(2, 5).second, 1) << "the post to rank 2";
    if (kind == SimulatedFault::Kind::kill) {
      EXPECT_EQ(got(2, 2).first, 2);
      EXPECT_EQ(got(2, 6), std::pair(std::int64_t{2}, std::int64_t{2})) << "after that post";
      EXPECT_EQ(got(1, 1000), std::pair(std::int64_t{1}, std::int64_t{1})) << "the first touch of the next step";
    }
  }
}

TEST(SimulatedFabric, AStallWithinTheDeadlineIsOnlyLateAndALongerOneIsMissed) {
  const auto late = log_of({.ranks = 3, .seed = 3, .faults = {{SimulatedFault::Kind::stall, 1, 3, milliseconds(5)}}});
  EXPECT_EQ(count(late, "message"), 5 * 9);
  const auto missed = log_of({.ranks = 3, .seed = 3, .faults = {{SimulatedFault::Kind::stall, 1, 3, milliseconds(50)}}});
  EXPECT_GE(count(missed, "from 1 nothing"), 1);
}

TEST(SimulatedFabric, WhatAStalledRankSendsTooLateIsTakenForNothingNewer) {
  simulate({.ranks = 2, .seed = 4, .faults = {{SimulatedFault::Kind::stall, 1, 1, milliseconds(50)}}}, [](Endpoint& end) {
    const int box = end.open({"a test", 8});
    if (end.rank() == 1) {
      ASSERT_NE(end.slot(box, 0, 1), nullptr);  // returns after the stall
      end.post(box, 0, 1, 8);
      return;
    }
    EXPECT_EQ(receive(end, box, 1, 1, end.now() + milliseconds(10)), Came::nothing);
    end.poison(1, end.rank());
    EXPECT_EQ(receive(end, box, 1, 3, end.now() + milliseconds(200)), Came::nothing) << "the slot of step 3 got step 1's message";
  });
}

}  // namespace
}  // namespace motet
