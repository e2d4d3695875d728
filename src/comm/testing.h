// SPDX-License-Identifier: Apache-2.0
// What the tests of faults share: a step of one rank whose sums tell whether it is right, and the points at which a rank can fail.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "fabric/testing.h"

namespace motet::faults {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Rank kRanks = 3;
constexpr std::int32_t kSlotsOfRank = 2;
constexpr std::int64_t kTopK = 2, kWidth = 4, kMostTokens = 3;

inline ExchangeShape shape() {
  ExchangeShape out{.max_tokens = kMostTokens, .top_k = kTopK, .width = kWidth};
  for (Rank r = 0; r < kRanks; ++r) out.slots.push_back({r * kSlotsOfRank, (r + 1) * kSlotsOfRank});
  out.part_bytes = {kWidth * 4};
  return out;
}

inline bool dispatches(const StrategyTraits& strategy) { return strategy.unit != RowUnit::none; }
/// Messages of a rank before those of combine: one to each rank, itself included, ascending.
inline int dispatched_posts(const StrategyTraits& strategy) { return dispatches(strategy) ? kRanks : 0; }
inline int all_posts(const StrategyTraits& strategy) { return dispatched_posts(strategy) + kRanks; }

// --- A step of one rank ---------------------------------------------------------------------------------------------------------

inline float expert(std::int32_t slot, float x) { return x * static_cast<float>(slot + 1); }

/// Tokens of a rank in a step, and their routed sums. Whole numbers below 2^24, so that a sum has the same bits in any order, and
/// others in each step, so that an old row does not pass for a new one.
struct Tokens {
  std::int64_t count = 0;
  std::vector<float> x, weight, sums;
  std::vector<std::int32_t> slot;
};
inline Tokens tokens_of(const StrategyTraits& strategy, Rank rank, StepId step) {
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
            add(source.first + i, source.parts[0], source.place(i), in.slot[choice], in.weight[choice]);
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
inline void expect_end(End wanted, const Exchange& exchange, const Step& step, Rank faulty) {
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
inline void expect_named(const Exchange& exchange, const Step& step) {
  if (exchange.state() == StepState::idle) {
    EXPECT_TRUE(step.right());
  } else {
    EXPECT_EQ(exchange.state(), StepState::failed);
    EXPECT_NE(exchange.failure(), StepFailure::none);
  }
}
/// What a rank that comes too late gets: its sums when all of them have come, or it hears that it was missed.
inline void expect_end_of_faulty(End wanted, const Exchange& exchange, const Step& step, Rank faulty) {
  if (wanted != End::either) {
    EXPECT_EQ(exchange.state() == StepState::idle, wanted == End::whole) << name_of(exchange.failure());
  }
  expect_named(exchange, step);
  if (exchange.failure() == StepFailure::none || exchange.failure() == StepFailure::abandoned) return;
  EXPECT_EQ(exchange.failure(), StepFailure::poisoned);
  EXPECT_EQ(std::vector<Rank>(exchange.missing().begin(), exchange.missing().end()), std::vector<Rank>{faulty});
}
/// Of rank r, when the faulty rank has posted that many messages of a step and no more come.
inline End end_after(int posts, const StrategyTraits& strategy, Rank r) {
  return posts > dispatched_posts(strategy) + r ? End::whole : End::broken;
}

/// Of the faulty rank, when it goes on after that many messages and the others are gone: they send sums once they have its rows.
inline End end_when_late(int posts, const StrategyTraits& strategy, Rank faulty) {
  const int to_others = dispatched_posts(strategy) - (faulty == kRanks - 1 ? 1 : 0);  // the last message may be its own
  return posts >= to_others ? End::whole : End::broken;
}

// --- Points of a step -----------------------------------------------------------------------------------------------------------

struct Point {
  enum class At { absent, begun, touch, post, received, done };
  At at;
  int posts;  // messages that the rank has posted by then; touch: whatever comes next; post: with the next one written
};
inline std::vector<Point> points_of(const StrategyTraits& strategy) {
  const int all = all_posts(strategy);
  std::vector<Point> out = {{Point::At::absent, 0}, {Point::At::begun, 0}, {Point::At::done, all}};
  if (dispatches(strategy)) out.push_back({Point::At::received, kRanks});
  for (int posts = 0; posts < all; ++posts) out.push_back({Point::At::post, posts});
  for (int posts = 1; posts <= all; ++posts) out.push_back({Point::At::touch, posts});
  return out;
}
inline std::string words(const StrategyTraits& strategy, Point point) {
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

}  // namespace motet::faults
