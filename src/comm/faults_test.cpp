// SPDX-License-Identifier: Apache-2.0
// What the other ranks get when one fails at any point of a step, of every strategy: threads and processes. docs/faults.md
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "comm/testing.h"

namespace motet::faults {
namespace {

// Real ranks on a clock of the test's own: it ticks when the others wait for the faulty rank and have nothing else left to do. So
// a slow machine changes nothing.

enum class Fault { late, far_behind, silent, leaves, killed };
/// Steps that the others begin while the faulty rank is silent.
StepId steps_missed(Fault fault) { return fault == Fault::late || fault == Fault::leaves ? 1 : 3; }
bool comes_back(Fault fault) { return fault != Fault::silent && fault != Fault::killed; }

constexpr Rank kFaulty = 1;
constexpr int kTicks = 8;  // of the step of a fault; one that a rank may begin while others are still in that step has twice these
constexpr std::uint64_t kTick = std::uint64_t{1} << 40;
constexpr StepId kForEver = ~StepId{0};
constexpr std::uint64_t kEnded = ~std::uint64_t{0};

constexpr auto kPatience = seconds(30);  // only when the test fails

/// In memory of all ranks.
struct Board {
  std::atomic<std::uint64_t> state{0};            // ticks, and below them what happened: posts, finishes, poisons, ticks
  std::atomic<StepId> silent_to{0};               // the clock ticks in steps up to this one
  std::atomic<StepId> back_at{0};                 // the faulty rank goes on when the others are in this step
  std::atomic<std::uint64_t> heard[kRanks] = {};  // state at the last look of a rank that found nothing to do
  std::atomic<StepId> step[kRanks] = {};

  /// The least step of the others, when all of them wait for the faulty rank or have ended; else 0.
  StepId settled() const {
    const std::uint64_t now = state.load();
    StepId least = kForEver;
    for (Rank r = 0; r < kRanks; ++r) {
      if (r == kFaulty) continue;
      const std::uint64_t last = heard[r].load();
      if (last == kEnded) continue;
      if (last != now) return 0;
      least = std::min(least, step[r].load());
    }
    return state.load() == now ? least : 0;
  }
  /// The others can do no more before the faulty rank goes on.
  void await_others() const {
    const auto limit = std::chrono::steady_clock::now() + kPatience;
    while (settled() < back_at.load()) {
      if (std::chrono::steady_clock::now() > limit) {
        ADD_FAILURE() << "the other ranks do not get to step " << back_at.load();
        return;
      }
      usleep(50);
    }
  }
};

class Staged final : public Watched {
 public:
  Staged(Endpoint& inner, Board& board) : Watched(inner), board_(board), give_up_(inner.now() + kPatience) {}

  void post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept override {
    happens([&] { Watched::post(mailbox, to, step, bytes); });
  }
  void finish(StepId step) noexcept override {
    happens([&] { Watched::finish(step); });
  }
  void poison(StepId step, Rank cause) noexcept override {
    happens([&] { Watched::poison(step, cause); });
  }
  FabricTime now() const noexcept override {  // each look begins with it
    heard_ = board_.state.load();
    return FabricTime(static_cast<std::int64_t>(heard_ / kTick));
  }
  void wait(FabricTime) noexcept override {
    const auto me = static_cast<std::size_t>(rank());
    board_.step[me] = step();
    board_.heard[me] = heard_;
    const StepId settled = board_.settled();
    std::uint64_t seen = heard_;
    if (settled > 0 && settled <= board_.silent_to.load()) {
      board_.state.compare_exchange_strong(seen, seen + kTick + 1);
    } else if (inner_.now() > give_up_) {
      board_.state += 1000 * kTick;
    } else if (board_.state.load() == heard_) {
      inner_.wait(inner_.now() + microseconds(200));
    }
  }

 private:
  /// Counted before, so that this rank has not heard all meanwhile, and after, so that no other has that did not see it.
  template <typename Act>
  void happens(Act act) noexcept {
    ++board_.state;
    act();
    ++board_.state;
  }

  Board& board_;
  const FabricTime give_up_;
  mutable std::uint64_t heard_ = 0;
};

/// A fault at each of some points, one after another.
struct Trouble {
  const StrategyTraits& strategy;
  Fault fault;
  std::vector<Point> points;
};

/// The step of the faulty rank: strikes at the point, and leaves when that held it. `pause` returns when the others can do no more.
void run_faulty(Point point, Staged& end, Exchange& exchange, Step& step, const std::function<void()>& strike,
                const std::function<void()>& pause) {
  if (point.at == Point::At::absent) strike();
  step.begin(end.now() + FabricTime(kTicks));
  if (point.at == Point::At::begun) strike();
  if (point.at == Point::At::touch || point.at == Point::At::post) end.strike_at(point, strike);
  for (;;) {
    const StepState state = exchange.poll();
    if (state == StepState::received && point.at == Point::At::received) strike();
    if (end.held()) {
      pause();
      end.release();
      return exchange.abandon();
    }
    if (state == StepState::idle || state == StepState::failed) break;
    if (state == StepState::received) step.combine();
    end.wait({});
  }
  if (point.at == Point::At::done) strike();
}

void run_rank(const Trouble& trouble, Endpoint& inner, Board& board, const std::function<void()>& pause) {
  Staged end(inner, board);
  Exchange exchange(trouble.strategy, shape(), end);
  const StepId missed = steps_missed(trouble.fault), whole_after = comes_back(trouble.fault) ? 2 : 0;
  StepId id = 0;
  const auto run_step = [&](End wanted, int ticks) {
    Step step(trouble.strategy, exchange, end.rank(), ++id);
    step.begin(end.now() + FabricTime(ticks));
    step.run();
    if (end.rank() == kFaulty && wanted != End::whole)
      expect_end_of_faulty(End::either, exchange, step, kFaulty);
    else
      expect_end(wanted, exchange, step, kFaulty);
  };
  const auto strike = [&] {
    if (trouble.fault == Fault::leaves) {
      board.back_at = id;
      return end.hold();
    }
    board.back_at = comes_back(trouble.fault) ? id + missed : kForEver;
    board.silent_to = comes_back(trouble.fault) ? id + missed - 1 : kForEver;
    if (trouble.fault == Fault::killed) raise(SIGKILL);
    pause();
  };
  for (int i = 0; i < 2; ++i) run_step(End::whole, kTicks);
  for (const Point point : trouble.points) {
    SCOPED_TRACE(words(trouble.strategy, point) + ", fault " + std::to_string(static_cast<int>(trouble.fault)));
    if (end.rank() == kFaulty) {
      Step step(trouble.strategy, exchange, end.rank(), ++id);
      run_faulty(point, end, exchange, step, strike, pause);
      const bool leaves = trouble.fault == Fault::leaves;
      expect_end_of_faulty(leaves ? End::broken : end_when_late(point.posts, trouble.strategy, kFaulty), exchange, step, kFaulty);
      if (!comes_back(trouble.fault)) break;
    } else {
      run_step(end_after(point.posts, trouble.strategy, end.rank()), kTicks);
    }
    for (StepId i = 1; i < missed; ++i) run_step(End::broken, 2 * kTicks);
    for (StepId i = 0; i < whole_after; ++i) run_step(End::whole, 2 * kTicks);
  }
  board.heard[end.rank()] = kEnded;
}

/// On threads, or on processes, which SIGSTOP makes silent.
void run_threads(const Trouble& trouble) {
  Board board;
  testing::run_threads(kRanks, [&](Endpoint& end) { run_rank(trouble, end, board, [&] { board.await_others(); }); });
}
void run_processes(const Trouble& trouble) {
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Board& board = *new (memory) Board;
  const bool stops = trouble.fault != Fault::leaves && trouble.fault != Fault::killed;
  const auto statuses = testing::run_processes(
      kRanks,
      [&](Endpoint& end) {
        run_rank(trouble, end, board, [&] {
          if (stops)
            raise(SIGSTOP);
          else
            board.await_others();
        });
      },
      [&](const std::vector<pid_t>& children) {
        for (std::size_t i = 0; stops && i < trouble.points.size(); ++i) {
          int status = 0;
          waitpid(children[kFaulty], &status, WUNTRACED);
          if (!WIFSTOPPED(status)) return;
          board.await_others();
          kill(children[kFaulty], SIGCONT);
        }
      });
  for (Rank r = 0; r < kRanks; ++r) {
    const int status = statuses[static_cast<std::size_t>(r)];
    if (r == kFaulty && trouble.fault == Fault::killed)
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    else
      EXPECT_EQ(status, 0) << trouble.strategy.name << ", rank " << r << ", fault " << static_cast<int>(trouble.fault);
  }
  munmap(memory, sizeof(Board));
}

/// Every point, in one group where the faulty rank comes back, else each in a group of its own.
void run_all_points(Fault fault, const std::function<void(const Trouble&)>& run) {
  for (const StrategyTraits* strategy : all_strategies()) {
    std::vector<Point> points = points_of(*strategy);
    if (fault == Fault::leaves)  // between two polls of a step
      std::erase_if(points,
                    [](Point p) { return p.at == Point::At::absent || p.at == Point::At::post || p.at == Point::At::done; });
    if (comes_back(fault)) {
      run({*strategy, fault, points});
      continue;
    }
    for (const Point point : points) run({*strategy, fault, {point}});
  }
}

TEST(L19, AnyFaultOfAThreadAtAnyPointEndsByNameOnAllOthers) {
  for (const Fault fault : {Fault::late, Fault::far_behind, Fault::silent, Fault::leaves}) run_all_points(fault, run_threads);
}
TEST(L19, AnyFaultOfAProcessAtAnyPointEndsByNameOnAllOthers) {
  for (const Fault fault : {Fault::late, Fault::far_behind, Fault::leaves, Fault::killed}) run_all_points(fault, run_processes);
}

/// Rank 0 never begins; real deadlines.
void expect_real_deadline(Endpoint& end) {
  for (const StrategyTraits* strategy : all_strategies()) {
    Exchange exchange(*strategy, shape(), end);
    if (end.rank() == 0) continue;
    const FabricTime deadline = end.now() + milliseconds(20);
    Step step(*strategy, exchange, end.rank(), 1);
    step.begin(deadline);
    step.run();
    EXPECT_EQ(exchange.state(), StepState::failed);
    EXPECT_TRUE(exchange.failure() == StepFailure::poisoned || exchange.failure() == StepFailure::timeout);
    ASSERT_FALSE(exchange.missing().empty());
    EXPECT_EQ(exchange.missing().front(), 0);
  }
}
TEST(L19, ARealDeadlineEndsAWaitForASilentThread) { testing::run_threads(kRanks, expect_real_deadline); }
TEST(L19, ARealDeadlineEndsAWaitForASilentProcess) { testing::expect_processes(kRanks, expect_real_deadline); }

}  // namespace
}  // namespace motet::faults
