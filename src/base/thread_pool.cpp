// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>

#include "base/check.h"
#include "base/fp_state.h"
#include "base/spin.h"
#include "base/text.h"
#include "motet/error.h"

namespace motet {
namespace {

constexpr std::int64_t kBatch = std::int64_t{1} << 30;  // pieces of one batch: counts fit the low half of a share's word

/// Waits until `value` is no longer `old`: spins for kSpin, then sleeps.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

/// Processors for workers 1.. and last for the caller, its present one where there is one pool; empty when there are not enough to
/// give each its own.
std::vector<int> choose_processors(int threads, PoolShare share) {
  std::vector<int> allowed = allowed_processors();
  const auto each = static_cast<std::size_t>(threads), pool = static_cast<std::size_t>(share.pool);
  if (each * static_cast<std::size_t>(share.pools) > allowed.size()) return {};
  if (share.pools > 1)
    return {allowed.begin() + static_cast<std::ptrdiff_t>(each * pool),
            allowed.begin() + static_cast<std::ptrdiff_t>(each * (pool + 1))};
  const auto here = std::find(allowed.begin(), allowed.end(), sched_getcpu());
  if (here != allowed.end()) std::rotate(here, here + 1, allowed.end());
  return allowed;
}

/// Blocks asynchronous signals while it lives, so that new threads inherit that and the program's handlers run on its own threads.
class BlockedSignals {
 public:
  BlockedSignals() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int synchronous : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF}) sigdelset(&blocked, synchronous);
    pthread_sigmask(SIG_SETMASK, &blocked, &saved_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

 private:
  sigset_t saved_;
};

}  // namespace

std::vector<int> allowed_processors() {
  for (int size = 1024; size <= (1 << 20); size *= 4) {
    cpu_set_t* const set = CPU_ALLOC(size);
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> result;
    const bool known = set != nullptr && sched_getaffinity(0, bytes, set) == 0;
    for (int processor = 0; known && processor < size; ++processor)
      if (CPU_ISSET_S(processor, bytes, set)) result.push_back(processor);
    CPU_FREE(set);
    if (!result.empty()) return result;
  }
  return {0};
}

ThreadPool::ThreadPool(int threads, PoolShare share)
    : threads_(threads), shares_(threads < 1 ? 1 : static_cast<std::size_t>(threads)), processors_(shares_.size(), -1) {
  MOTET_CHECK(threads >= 1, "threads %d", threads);
  MOTET_CHECK(share.pool >= 0 && share.pool < share.pools, "pool %d of %d", share.pool, share.pools);
  const std::vector<int> processors = choose_processors(threads, share);
  const BlockedSignals blocked;
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error& error) {
      stop();
      throw Error(ErrorCode::would_not_fit,
                  format_text("thread %d of %d could not be started (%s); ask for fewer threads or raise the limit on processes",
                              thread + 1, threads, error.what()));
    }
    const pthread_t handle = workers_.back().native_handle();
    pthread_setname_np(handle, format_text("motet-%d", thread).substr(0, 15).c_str());
    if (processors.empty()) continue;
    const int processor = processors[static_cast<std::size_t>(thread - 1)];
    const std::size_t bytes = CPU_ALLOC_SIZE(processor + 1);
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(processor) + 1);
    if (set == nullptr) continue;
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(processor, bytes, set);
    if (pthread_setaffinity_np(handle, bytes, set) == 0) processors_[static_cast<std::size_t>(thread)] = processor;
    CPU_FREE(set);
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() noexcept {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::work(int thread) noexcept {
  const DefaultFpState state;
  std::uint32_t seen = 0;
  for (;;) {
    wait_while(generation_, seen);
    seen = generation_.load();
    if (stopping_.load()) return;  // after `seen`: stop() sets it before the last generation, which nothing would end the wait for
    const auto ran = static_cast<std::uint32_t>(take_pieces(seen, thread));
    if (ran != 0 && unfinished_.fetch_sub(ran) == ran) unfinished_.notify_one();
  }
}

std::int64_t ThreadPool::take_pieces(std::uint32_t generation, int thread) noexcept {
  std::int64_t ran = 0;
  for (int i = 0; i < threads_; ++i) {
    Share& share = shares_[static_cast<std::size_t>((thread + i) % threads_)];
    std::uint64_t word = share.word.load(std::memory_order_acquire);
    for (;;) {
      const auto left = static_cast<std::uint32_t>(word);
      if (static_cast<std::uint32_t>(word >> 32) != generation || left == 0) break;
      if (!share.word.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      body_(context_, share.end - left, thread);  // the claim keeps this run open, so none of these is replaced meanwhile
      ++ran;
      word = share.word.load(std::memory_order_acquire);
    }
  }
  return ran;
}

void ThreadPool::run_batch(std::int64_t first, std::int64_t pieces) noexcept {
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  unfinished_.store(static_cast<std::uint32_t>(pieces), std::memory_order_relaxed);
  for (int t = 0; t < threads_; ++t) {
    Share& share = shares_[static_cast<std::size_t>(t)];
    const std::int64_t begin = pieces * t / threads_, end = pieces * (t + 1) / threads_;
    share.end = first + end;
    share.word.store(static_cast<std::uint64_t>(generation) << 32 | static_cast<std::uint64_t>(end - begin),
                     std::memory_order_release);
  }
  generation_.store(generation);
  generation_.notify_all();
  const auto ran = static_cast<std::uint32_t>(take_pieces(generation, 0));
  std::uint32_t left = unfinished_.fetch_sub(ran) - ran;
  while (left != 0) {
    wait_while(unfinished_, left);
    left = unfinished_.load(std::memory_order_acquire);
  }
}

void ThreadPool::run(std::int64_t pieces, Body body, void* context) noexcept {
  MOTET_CHECK(pieces >= 0, "pieces %lld", static_cast<long long>(pieces));
  const DefaultFpState state;
  if (threads_ == 1 || pieces <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(context, piece, 0);
    return;
  }
  body_ = body;
  context_ = context;
  for (std::int64_t first = 0; first < pieces; first += kBatch) run_batch(first, std::min(kBatch, pieces - first));
}

}  // namespace motet
