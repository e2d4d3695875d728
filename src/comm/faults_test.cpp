// SPDX-License-Identifier: Apache-2.0
// What the other ranks get when one fails at any point of a step, of every strategy and on every fabric: docs/faults.md.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>

#include "comm/exchange.h"
#include "fabric/testing.h"

namespace motet {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Rank kRanks = 3;
constexpr std::int32_t kSlotsOfRank = 2;
constexpr std::int64_t kTopK = 2, kWidth = 4, kMostTokens = 3;

ExchangeShape shape() {
  ExchangeShape out{.max_tokens = kMostTokens, .top_k = kTopK, .width = kWidth};
  for (Rank r = 0; r < kRanks; ++r) out.slots.push_back({r * kSlotsOfRank, (r + 1) * kSlotsOfRank});
  out.part_bytes = {kWidth * 4};
  return out;
}

bool dispatches(const StrategyTraits& strategy) { return strategy.unit != RowUnit::none; }
/// Messages of a rank before those of combine: one to each rank, itself included, ascending.
int dispatched_posts(const StrategyTraits& strategy) { return dispatches(strategy) ? kRanks : 0; }
int all_posts(const StrategyTraits& strategy) { return dispatched_posts(strategy) + kRanks; }

// --- A step of one rank ---------------------------------------------------------------------------------------------------------

float expert(std::int32_t slot, float x) { return x * static_cast<float>(slot + 1); }

/// Tokens of a rank in a step, and their routed sums. Whole numbers below 2^24, so that a sum has the same bits in any order, and
/// others in each step, so that an old row does not pass for a new one.
struct Tokens {
  std::int64_t count = 0;
  std::vector<float> x, weight, sums;
  std::vector<std::int32_t> slot;
};
Tokens tokens_of(const StrategyTraits& strategy, Rank rank, StepId step) {
  const int place = dispatches(strategy) ? rank : 0, number = static_cast<int>(step);  // its own, or the same on all ranks
  Tokens out;
  out.count = (number + place) % (kMostTokens + 1);
  for (int t = 0; t < out.count; ++t) {
    for (int k = 0; k < kTopK; ++k) {
      out.slot.push_back((number + t + place + k * (1 + t)) % (kRanks * kSlotsOfRank));
      out.weight.push_back(static_cast<float>(1 + (t + k) % 2));
    }
    for (int i = 0; i < kWidth; ++i) {
      out.x.push_back(static_cast<float>(1000 * number + 100 * place + 10 * t + i));
      float sum = 0;
      for (std::size_t k = out.slot.size() - kTopK; k < out.slot.size(); ++k)
        sum += out.weight[k] * expert(out.slot[k], out.x.back());
      out.sums.push_back(sum);
    }
  }
  return out;
}

class Step {
 public:
  Step(const StrategyTraits& strategy, Exchange& exchange, Rank rank, StepId step)
      : dispatched_(dispatches(strategy)), exchange_(exchange), rank_(rank), tokens_(tokens_of(strategy, rank, step)) {}

  void begin(FabricTime deadline) {
    exchange_.begin({.tokens = tokens_.count, .slot = tokens_.slot.data(), .weight = tokens_.weight.data(), .parts = {&x_, 1}},
                    deadline);
  }
  /// With this rank's experts run on what came, or on its own tokens where all ranks have the same.
  void combine() {
    const Received& in = exchange_.received();
    rows_.assign(static_cast<std::size_t>((dispatched_ ? in.rows : tokens_.count) * kWidth), 0.0f);
    routed_.assign(tokens_.sums.size(), -1.0f);
    if (!dispatched_) {
      for (std::int64_t choice = 0; choice < tokens_.count * kTopK; ++choice) {
        const auto c = static_cast<std::size_t>(choice);
        if (tokens_.slot[c] / kSlotsOfRank == rank_) add(choice / kTopK, x_, choice / kTopK, tokens_.slot[c], tokens_.weight[c]);
      }
    } else {
      for (const SourceRows& source : in.sources)
        for (std::int64_t i = 0; i < source.rows; ++i)
          for (std::int64_t k = 0; k < in.choices; ++k) {
            const std::int64_t choice = (source.first + i) * in.choices + k;
            if (in.slot[choice] < 0) continue;
            add(source.first + i, source.parts[0], i, in.slot[choice], in.weight[choice]);
          }
    }
    exchange_.combine(rows_.data(), kWidth, routed_.data());
  }
  /// As far as it gets.
  void run() {
    while (exchange_.wait() == StepState::received) combine();
  }
  bool right() const { return exchange_.state() == StepState::idle && routed_ == tokens_.sums; }

 private:
  void add(std::int64_t row, const std::byte* x, std::int64_t x_row, std::int32_t slot, float weight) {
    for (std::int64_t i = 0; i < kWidth; ++i)
      rows_[static_cast<std::size_t>(row * kWidth + i)] +=
          weight * expert(slot, reinterpret_cast<const float*>(x)[x_row * kWidth + i]);
  }

  const bool dispatched_;
  Exchange& exchange_;
  const Rank rank_;
  const Tokens tokens_;
  const std::byte* const x_ = reinterpret_cast<const std::byte*>(tokens_.x.data());
  std::vector<float> rows_, routed_;
};

enum class End { whole, broken, either };
/// What a rank that keeps to the protocol gets: the right sums, or a failure that names the faulty rank and no other.
void expect_end(End wanted, const Exchange& exchange, const Step& step, Rank faulty) {
  const bool whole = exchange.state() == StepState::idle;
  if (wanted != End::either) {
    EXPECT_EQ(whole, wanted == End::whole) << name_of(exchange.failure());
  }
  if (whole) {
    EXPECT_TRUE(step.right());
    return;
  }
  EXPECT_EQ(exchange.state(), StepState::failed);
  EXPECT_TRUE(exchange.failure() == StepFailure::timeout || exchange.failure() == StepFailure::poisoned)
      << name_of(exchange.failure());
  EXPECT_EQ(std::vector<Rank>(exchange.missing().begin(), exchange.missing().end()), std::vector<Rank>{faulty})
      << name_of(exchange.failure());
}
/// What any rank gets, whatever it did: the right sums or a name.
void expect_named(const Exchange& exchange, const Step& step) {
  if (exchange.state() == StepState::idle) {
    EXPECT_TRUE(step.right());
  } else {
    EXPECT_EQ(exchange.state(), StepState::failed);
    EXPECT_NE(exchange.failure(), StepFailure::none);
  }
}
/// What a rank that comes too late gets: its sums when all of them have come, or it hears that it was missed.
void expect_end_of_faulty(End wanted, const Exchange& exchange, const Step& step, Rank faulty) {
  if (wanted != End::either) {
    EXPECT_EQ(exchange.state() == StepState::idle, wanted == End::whole) << name_of(exchange.failure());
  }
  expect_named(exchange, step);
  if (exchange.failure() == StepFailure::none || exchange.failure() == StepFailure::abandoned) return;
  EXPECT_EQ(exchange.failure(), StepFailure::poisoned);
  EXPECT_EQ(std::vector<Rank>(exchange.missing().begin(), exchange.missing().end()), std::vector<Rank>{faulty});
}
/// Of rank r, when the faulty rank has posted that many messages of a step and no more come.
End end_after(int posts, const StrategyTraits& strategy, Rank r) {
  return posts > dispatched_posts(strategy) + r ? End::whole : End::broken;
}

/// Of the faulty rank, when it goes on after that many messages and the others are gone: they send sums once they have its rows.
End end_when_late(int posts, const StrategyTraits& strategy, Rank faulty) {
  const int to_others = dispatched_posts(strategy) - (faulty == kRanks - 1 ? 1 : 0);  // the last message may be its own
  return posts >= to_others ? End::whole : End::broken;
}

// --- Points of a step -----------------------------------------------------------------------------------------------------------

struct Point {
  enum class At { absent, begun, touch, post, received, done };
  At at;
  int posts;  // messages that the rank has posted by then; touch: whatever comes next; post: with the next one written
};
std::vector<Point> points_of(const StrategyTraits& strategy) {
  const int all = all_posts(strategy);
  std::vector<Point> out = {{Point::At::absent, 0}, {Point::At::begun, 0}, {Point::At::done, all}};
  if (dispatches(strategy)) out.push_back({Point::At::received, kRanks});
  for (int posts = 0; posts < all; ++posts) out.push_back({Point::At::post, posts});
  for (int posts = 1; posts <= all; ++posts) out.push_back({Point::At::touch, posts});
  return out;
}
std::string words(const StrategyTraits& strategy, Point point) {
  const char* const names[] = {"absent", "begun", "touch", "post", "received", "done"};
  return std::string(strategy.name) + ", " + names[static_cast<int>(point.at)] + " after " + std::to_string(point.posts);
}

/// Counts what a rank does in a step, strikes at a point, and can keep the rank from going on.
class Watched : public Endpoint {
 public:
  explicit Watched(Endpoint& inner) : inner_(inner) {}

  void strike_at(Point point, std::function<void()> strike) { point_ = point, strike_ = std::move(strike); }
  /// Nothing can be sent and nothing comes.
  void hold() { held_ = true; }
  void release() { held_ = false; }
  bool held() const { return held_; }
  /// Of the last step: for each touch, whether it is a post.
  const std::vector<bool>& touches() const { return touches_; }
  StepId step() const { return step_; }

  Rank rank() const noexcept override { return inner_.rank(); }
  Rank ranks() const noexcept override { return inner_.ranks(); }
  int open(const MailboxSpec& spec) override { return inner_.open(spec); }
  std::byte* slot(int mailbox, Rank to, StepId step) noexcept override {
    touch(step, Point::At::touch);
    return held_ ? nullptr : inner_.slot(mailbox, to, step);
  }
  void post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept override {
    touch(step, Point::At::post);
    inner_.post(mailbox, to, step, bytes);
    ++posts_;
  }
  std::optional<ByteSpan> arrived(int mailbox, Rank from, StepId step) noexcept override {
    touch(step, Point::At::touch);
    return held_ ? std::nullopt : inner_.arrived(mailbox, from, step);
  }
  void finish(StepId step) noexcept override { inner_.finish(step); }
  void poison(StepId step, Rank cause) noexcept override { inner_.poison(step, cause); }
  std::optional<Rank> poisoned(Rank from, StepId step) const noexcept override { return inner_.poisoned(from, step); }
  FabricTime now() const noexcept override { return inner_.now(); }
  void wait(FabricTime until) noexcept override { inner_.wait(until); }

 protected:
  Endpoint& inner_;

 private:
  void touch(StepId step, Point::At at) {
    if (step > step_) {
      step_ = step;
      posts_ = 0;
      touches_.clear();
    }
    touches_.push_back(at == Point::At::post);
    if (!strike_ || point_.at != at || point_.posts != posts_) return;
    const std::function<void()> strike = std::exchange(strike_, nullptr);
    strike();
  }

  Point point_{};
  std::function<void()> strike_;
  bool held_ = false;
  StepId step_ = 0;
  int posts_ = 0;
  std::vector<bool> touches_;
};

// --- Threads and processes ------------------------------------------------------------------------------------------------------
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

// --- Virtual time ---------------------------------------------------------------------------------------------------------------

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
}  // namespace motet
