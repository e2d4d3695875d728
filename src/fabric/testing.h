// SPDX-License-Identifier: Apache-2.0
// For tests over fabrics: the same body as the ranks of a group, on every fabric.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>

#include "fabric/simulated.h"

namespace motet::testing {

/// Bytes of the mailboxes of a group.
inline constexpr std::int64_t kReserve = std::int64_t{1} << 24;

inline void run_threads(Rank ranks, const std::function<void(Endpoint&)>& body) {
  const auto endpoints = thread_endpoints(ranks, kReserve);
  std::vector<std::thread> threads;
  for (const auto& endpoint : endpoints) threads.emplace_back([&body, &endpoint] { body(*endpoint); });
  for (std::thread& thread : threads) thread.join();
}

/// Runs body in a child process for each rank, which fails when an expectation does; returns the children's wait statuses.
inline std::vector<int> run_processes(Rank ranks, const std::function<void(Endpoint&)>& body,
                                      const std::function<void(const std::vector<pid_t>&)>& meanwhile = {}) {
  const int segment = shm_segment(ranks, kReserve);
  std::vector<pid_t> children;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        body(*shm_endpoint(segment, kReserve, rank, ranks));
      } catch (...) {  // back in the test it would run the rest of it a second time
        _exit(1);
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  close(segment);
  if (meanwhile) meanwhile(children);
  std::vector<int> statuses;
  for (const pid_t child : children) {
    statuses.push_back(-1);
    waitpid(child, &statuses.back(), 0);
  }
  return statuses;
}
inline void expect_processes(Rank ranks, const std::function<void(Endpoint&)>& body) {
  for (const int status : run_processes(ranks, body)) EXPECT_EQ(status, 0);
}

/// The ranks of the MPI launch that this process is one of (tests/CMakeLists.txt launches them); 0 when it is of none.
inline Rank launched_ranks() {
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size == nullptr ? 0 : std::atoi(size);
}
/// This process is one rank, where the launch has as many; groups of another size are for other launches.
inline void run_mpi(Rank ranks, const std::function<void(Endpoint&)>& body) {
  if (ranks == launched_ranks()) body(*mpi_endpoint(std::chrono::seconds(20)));
}

enum class Came { message, poison, nothing };
/// What comes from a rank for a step within the deadline.
inline Came receive(Endpoint& end, int mailbox, Rank from, StepId step, FabricTime deadline, ByteSpan* message = nullptr) {
  for (;;) {
    if (const auto got = end.arrived(mailbox, from, step)) {
      if (message != nullptr) *message = *got;
      return Came::message;
    }
    if (end.poisoned(from, step)) return Came::poison;
    if (end.now() >= deadline) return Came::nothing;
    end.wait(deadline);
  }
}
/// The slot for a step, or null when the receiver does not free it within the deadline.
inline std::byte* slot_within(Endpoint& end, int mailbox, Rank to, StepId step, FabricTime deadline) {
  for (;;) {
    if (std::byte* const slot = end.slot(mailbox, to, step)) return slot;
    if (end.now() >= deadline) return nullptr;
    end.wait(deadline);
  }
}

struct Way {
  std::string name;
  std::function<void(Rank, const std::function<void(Endpoint&)>&)> run;
};
inline std::vector<Way> ways() {
  if (launched_ranks() > 0) return {{"mpi", run_mpi}};
  std::vector<Way> result = {{"threads", run_threads}, {"shm", expect_processes}};
  for (const std::uint64_t seed : {1, 2, 3})
    result.push_back({"simulated_" + std::to_string(seed), [seed](Rank ranks, const std::function<void(Endpoint&)>& body) {
                        simulate({.ranks = ranks, .seed = seed}, body);
                      }});
  return result;
}

}  // namespace motet::testing
