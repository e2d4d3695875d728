// SPDX-License-Identifier: Apache-2.0
// What only the mpi fabric promises. What every fabric does is tested by the same bodies as elsewhere (testing.h, ways()); the
// launches are in tests/CMakeLists.txt.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "fabric/mpi_module.h"
#include "fabric/testing.h"
#include "motet/error.h"

namespace motet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using testing::Came;
using testing::launched_ranks;
using testing::receive;
using testing::slot_within;

// --- Without MPI --------------------------------------------------------------------------------------------------------------

/// The sentence of the refusal, which must be not_supported.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}
void expect_words(const std::string& sentence, const std::vector<std::string>& words) {
  for (const std::string& each : words) EXPECT_NE(sentence.find(each), std::string::npos) << each << " is not in: " << sentence;
}

TEST(MpiModule, IsAllThatLinksMpi) {
  EXPECT_EQ(dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD), nullptr)
      << "Open MPI's library is in a program that has not asked for it";
}

TEST(MpiModule, ThatIsMissingIsNamedWithWhatToDo) {
  setenv("MOTET_MPI_MODULE", "/no/such/motet_mpi.so", 1);
  const std::string sentence = refusal([] { mpi_endpoint(seconds(1)); });
  unsetenv("MOTET_MPI_MODULE");
  expect_words(sentence, {"fabric 'mpi' is a module", "'/no/such/motet_mpi.so' could not be loaded", "No such file",
                          "install Open MPI", "MOTET_MPI_MODULE"});
}

TEST(MpiModule, ThatIsSomethingElseIsNamed) {
  setenv("MOTET_MPI_MODULE", "libm.so.6", 1);
  const std::string sentence = refusal([] { mpi_endpoint(seconds(1)); });
  unsetenv("MOTET_MPI_MODULE");
  expect_words(sentence, {"'libm.so.6' could not be loaded", "undefined symbol: motet_mpi_module"});
}

TEST(MpiModule, OfAnotherMotetOrBuiltWithAnotherMpiIsRefusedWithBothVersions) {
  MpiModule module = {.motet_version = "0.0.1",
                      .mpi_built = "Open MPI v4.1",
                      .mpi_running = [] { return std::string("Open MPI v5.0.2"); },
                      .endpoint = nullptr};
  expect_words(refusal([&] { check_mpi_module(module, "a/file"); }),
               {"'a/file' is of version 0.0.1", MOTET_VERSION, "from one build"});
  module.motet_version = MOTET_VERSION;
  expect_words(refusal([&] { check_mpi_module(module, "a/file"); }),
               {"built with, which was Open MPI v4.1,", "'a/file' says 'Open MPI v5.0.2'", "LD_LIBRARY_PATH", "build Motet again"});
  module.mpi_running = [] { return std::string("Open MPI v4.10.0"); };
  refusal([&] { check_mpi_module(module, "a/file"); });
  module.mpi_running = [] { return std::string("Open MPI v4.1.6"); };
  check_mpi_module(module, "a/file");
}

// --- In a launch --------------------------------------------------------------------------------------------------------------

/// Tests of a launch of so many ranks.
#define MOTET_IN_LAUNCH_OF(condition) \
  if (!(condition)) GTEST_SKIP() << "needs an MPI launch of another size: see the tests mpi_* of ctest"

std::unique_ptr<Endpoint> endpoint() { return mpi_endpoint(seconds(20)); }

TEST(Mpi, GroupsAreOfTheWholeLaunch) {
  MOTET_IN_LAUNCH_OF(launched_ranks() >= 1);
  const auto end = endpoint();
  EXPECT_EQ(end->ranks(), launched_ranks());
  EXPECT_EQ(end->rank(), std::atoi(std::getenv("OMPI_COMM_WORLD_RANK")));
}

TEST(Mpi, RefusesWhatDoesNotFitWithTheSizes) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 2);
  const auto end = endpoint();
  for (const std::int64_t bytes : {INT64_MAX / 4, std::int64_t{1} << 38}) {  // more than memory; more units than an int counts
    try {
      end->open({"rows", bytes});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::would_not_fit);
      expect_words(error.what(), {"mailbox 'rows' of 2 ranks needs 6 buffers of " + std::to_string(bytes) + " bytes"});
    }
  }
  EXPECT_EQ(end->open({"rows", 64}), 0) << "a refusal leaves nothing behind";
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

TEST(Mpi, AWaitingRankUsesLittleProcessor) {
  MOTET_IN_LAUNCH_OF(launched_ranks() >= 1);
  const auto end = endpoint();
  end->wait(end->now() + milliseconds(100));  // the others have opened the group
  const double before = cpu_seconds();
  const FabricTime until = end->now() + milliseconds(300);
  while (end->now() < until) end->wait(until);
  EXPECT_LT(cpu_seconds() - before, 0.03) << "a spinning one would have used ten times as much";
}

TEST(Mpi, ALongMessageUnderWayIsSeenBeforeThePoisonThatFollowsIt) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 2);
  constexpr std::int64_t kLong = 32 << 20;
  const auto end = endpoint();
  const int box = end->open({"a test", kLong});
  const FabricTime deadline = end->now() + seconds(20);
  if (end->rank() == 0) {
    std::memset(slot_within(*end, box, 1, 1, deadline), 1, kLong);
    end->post(box, 1, 1, kLong);
    end->finish(1);
    end->poison(2, 0);
  } else {
    while (!end->poisoned(0, 1) && end->now() < deadline) end->wait(deadline);
    EXPECT_EQ(end->poisoned(0, 2), 0);
    const auto message = end->arrived(box, 0, 1);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->bytes, kLong);
    EXPECT_EQ(message->data[kLong - 1], std::byte{1});
  }
}

TEST(Mpi, AClosedEndHasSentAndTakenAllThatWasPosted) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 2);
  constexpr std::int64_t kLong = 32 << 20;
  auto end = endpoint();
  const int box = end->open({"a test", kLong});
  const FabricTime deadline = end->now() + seconds(20);
  if (end->rank() == 0) {
    std::memset(slot_within(*end, box, 1, 1, deadline), 1, kLong);
    end->post(box, 1, 1, kLong);
    end.reset();
  } else {
    usleep(1200000);  // longer than a rank waits for one that says that it leaves too
    ByteSpan got;
    ASSERT_EQ(receive(*end, box, 0, 1, deadline, &got), Came::message);
    EXPECT_EQ(got.data[kLong - 1], std::byte{1});
    ASSERT_NE(slot_within(*end, box, 0, 1, deadline), nullptr);
    end->post(box, 0, 1, kLong);  // under way when this rank says that it leaves; a launch in which it is lost fails
  }
}

/// Stops this process, once MPI has had time to send what was posted.
void stop(Endpoint& end) {
  for (const FabricTime sent = end.now() + milliseconds(200); end.now() < sent;) end.wait(sent);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive the launcher
  raise(SIGSTOP);
}

/// Rank 1 tells the others its process, then stops; they give it up. When it goes on, what it sends is taken for nothing newer.
TEST(Mpi, AStoppedRankIsSilentAndComesTooLate) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 4);
  const auto end = endpoint();
  const int box = end->open({"a test", 8});
  const FabricTime deadline = end->now() + seconds(20);
  const pid_t self = getpid();
  for (Rank to = 0; to < 4; ++to) {
    std::memcpy(slot_within(*end, box, to, 1, deadline), &self, sizeof self);
    end->post(box, to, 1, sizeof self);
  }
  ByteSpan got;
  ASSERT_EQ(receive(*end, box, 1, 1, deadline, &got), Came::message);
  EXPECT_FALSE(end->arrived(box, 1, 3).has_value()) << "the slot of step 1 serves step 3";
  const auto send_step_4 = [&](Rank to) {
    ASSERT_NE(slot_within(*end, box, to, 4, deadline), nullptr);
    end->post(box, to, 4, 4);
  };
  if (end->rank() == 1) {
    stop(*end);
    for (Rank to = 0; to < 4; ++to) end->post(box, to, 2, 2);
    end->finish(2);
    EXPECT_EQ(receive(*end, box, 0, 4, deadline), Came::message);
    for (const Rank to : {0, 2, 3}) send_step_4(to);
    usleep(1200000);  // whoever has heard of it again waits for it, longer than for a rank that was given up
    return;
  }
  pid_t stopped = 0;
  std::memcpy(&stopped, got.data, sizeof stopped);
  const FabricTime begin = end->now();
  EXPECT_EQ(receive(*end, box, 1, 2, begin + milliseconds(500)), Came::nothing);
  EXPECT_LT(end->now() - begin, milliseconds(1000));
  end->poison(2, 1);
  if (end->rank() == 0) {
    for (const Rank other : {2, 3}) EXPECT_EQ(receive(*end, box, other, 2, deadline), Came::poison) << "all gave it up";
    kill(stopped, SIGCONT);
  }
  EXPECT_EQ(receive(*end, box, 1, 4, end->now() + milliseconds(500)), Came::nothing) << "the slot of step 2 serves step 4";
  if (end->rank() == 0) send_step_4(1);
  EXPECT_EQ(receive(*end, box, 1, 4, deadline, &got), Came::message) << "what came too late made way";
  EXPECT_EQ(got.bytes, 4);
}

/// Ranks that do not open the same mailboxes: a message is longer than the buffer that waits for it, which is an error of MPI. Short
/// enough to travel in one piece: a longer one is read whole from the peer's memory, whatever the buffer holds (see src/comm/agreement.cpp).
TEST(MpiAtTheEnd, AnErrorOnAPeerIsThatPeersPoison) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 3 && std::getenv("MOTET_TEST_AT_THE_END") != nullptr);
  auto end = endpoint();
  const std::int64_t bytes = end->rank() == 0 ? 1024 : 8;
  const int box = end->open({"a test", bytes});
  const FabricTime begin = end->now(), deadline = begin + seconds(20);
  for (Rank to = 0; to < 3; ++to) {
    ASSERT_NE(slot_within(*end, box, to, 1, deadline), nullptr);
    end->post(box, to, 1, bytes);
  }
  for (const Rank from : {1, 2, 0}) {
    const bool too_long = from == 0 && end->rank() != 0;
    EXPECT_EQ(receive(*end, box, from, 1, deadline), too_long ? Came::poison : Came::message) << from;
    EXPECT_EQ(end->poisoned(from, 1), too_long ? std::optional<Rank>(0) : std::nullopt) << from;
  }
  end.reset();
  EXPECT_LT(std::chrono::steady_clock::now().time_since_epoch() - begin, seconds(6)) << "both sides know that it is over";
}

/// The launch ends although rank 1 stays stopped: the others close their ends in time, say so and leave without MPI_Finalize.
TEST(MpiAtTheEnd, ClosingDoesNotWaitForARankThatStaysStopped) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 3 && std::getenv("MOTET_TEST_AT_THE_END") != nullptr);
  auto end = endpoint();
  const int box = end->open({"a test", 1 << 20});
  const FabricTime deadline = end->now() + seconds(20);
  for (Rank to = 0; to < 3; ++to) {
    ASSERT_NE(slot_within(*end, box, to, 1, deadline), nullptr);
    end->post(box, to, 1, 0);
  }
  ASSERT_EQ(receive(*end, box, 1, 1, deadline), Came::message);
  if (end->rank() == 1) stop(*end);
  end->finish(1);
  for (Rank to = 0; to < 3; ++to) {
    ASSERT_NE(slot_within(*end, box, to, 2, deadline), nullptr);
    end->post(box, to, 2, 1 << 20);  // too long to be on its way without the receiver
  }
  EXPECT_EQ(receive(*end, box, 1, 2, end->now() + milliseconds(500)), Came::nothing);
  end->poison(2, 1);
  const FabricTime begin = end->now();
  const Rank rank = end->rank();
  end.reset();
  EXPECT_LT(std::chrono::steady_clock::now().time_since_epoch() - begin, seconds(3));
  if (::testing::UnitTest::GetInstance()->failed_test_count() > 0 || HasFailure()) return;
  if (rank == 2) usleep(100000);  // its report comes although rank 0 leaves before
  printf("this rank has passed\n");
  fflush(stdout);
}

TEST(Mpi, RunsWhereTheLauncherBindsEachRankToACore) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 2);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  if (CPU_COUNT(&mine) >= sysconf(_SC_NPROCESSORS_ONLN)) GTEST_SKIP() << "the launcher binds nobody here";
  const auto end = endpoint();
  const int box = end->open({"a test", 8});
  const FabricTime begin = end->now();
  for (StepId step = 1; step <= 200; ++step) {
    for (Rank to = 0; to < 2; ++to) {
      ASSERT_NE(slot_within(*end, box, to, step, begin + seconds(20)), nullptr);
      end->post(box, to, step, 8);
    }
    for (Rank from = 0; from < 2; ++from) ASSERT_EQ(receive(*end, box, from, step, begin + seconds(20)), Came::message);
    end->finish(step);
  }
  EXPECT_LT(end->now() - begin, seconds(2));
}

/// Takes 4.3 GiB of memory: run by hand. An int counts bytes up to 2 GiB.
TEST(Mpi, DISABLED_AMessageIsLongerThanAnIntCountsBytes) {
  MOTET_IN_LAUNCH_OF(launched_ranks() == 2);
  constexpr std::int64_t kLong = (std::int64_t{1} << 31) + (std::int64_t{1} << 27) + 5;
  const auto end = endpoint();
  const int box = end->open({"a test", kLong});
  const FabricTime deadline = end->now() + seconds(60);
  if (end->rank() == 0) {
    std::byte* const slot = slot_within(*end, box, 1, 1, deadline);
    for (std::int64_t at = 0; at < kLong; at += 4093) slot[at] = static_cast<std::byte>(at * 31 >> 5);
    end->post(box, 1, 1, kLong);
  } else {
    ByteSpan got;
    ASSERT_EQ(receive(*end, box, 0, 1, deadline, &got), Came::message);
    ASSERT_EQ(got.bytes, kLong);
    for (std::int64_t at = 0; at < kLong; at += 4093) ASSERT_EQ(got.data[at], static_cast<std::byte>(at * 31 >> 5)) << at;
  }
}

}  // namespace
}  // namespace motet
