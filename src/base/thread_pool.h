// SPDX-License-Identifier: Apache-2.0
// Motet's own threads. One user at a time; several pools may run from several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "motet/executor.h"

namespace motet {

/// Pools that run at the same time on the same processors.
struct PoolShare {
  int pool = 0, pools = 1;  ///< this one, of how many of as many threads
};

/// `threads` threads in all: the caller of run() is thread 0, the others are pinned to distinct processors of the creator's
/// affinity mask when it has enough of them for all pools. The caller's own thread is never pinned.
///
/// Pieces: thread t owns [pieces*t/threads, pieces*(t+1)/threads), takes its own in order, then helps the others, so a thread that
/// the system took away costs one piece. Idle threads spin at most kSpin, then sleep. Every piece runs in DefaultFpState. Nothing
/// allocates after construction.
class ThreadPool final : public Executor {
 public:
  /// Throws Error(would_not_fit) when the system refuses a thread. Requires threads >= 1 and 0 <= pool < pools.
  explicit ThreadPool(int threads, PoolShare share = {});
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept override { return threads_; }
  void run(std::int64_t pieces, void (*body)(void* context, std::int64_t piece, int thread) noexcept,
           void* context) noexcept override;
  /// Processor that thread t (>= 1) is pinned to, or -1.
  int processor_of(int thread) const noexcept { return processors_[static_cast<std::size_t>(thread)]; }

 private:
  using Body = void (*)(void*, std::int64_t, int) noexcept;
  /// One owner's pieces: the generation in the high half, how many are left in the low half. The generation in the same word lets
  /// a late thread see that the run it woke up for is over, without the caller waiting for it.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> word{0};
    std::int64_t end = 0;  // one past the last piece; read only by who holds an unfinished piece
  };

  void work(int thread) noexcept;  // of a worker, until stopped
  void run_batch(std::int64_t first, std::int64_t pieces) noexcept;
  std::int64_t take_pieces(std::uint32_t generation, int thread) noexcept;  // how many it ran
  void stop() noexcept;

  const int threads_;
  std::vector<Share> shares_;
  std::vector<int> processors_;
  Body body_ = nullptr;  // body and context: read only by who holds an unfinished piece
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // also what idle workers sleep on
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // pieces of this batch; the caller sleeps on it
  std::vector<std::thread> workers_;
};

/// Processors in this thread's affinity mask, ascending. Never empty.
std::vector<int> allowed_processors();

}  // namespace motet
