// SPDX-License-Identifier: Apache-2.0
#include "fabric/simulated.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/arena.h"
#include "base/check.h"
#include "base/math.h"
#include "motet/error.h"

namespace motet {

extern const FabricTraits fabric_simulated;
const FabricTraits fabric_simulated = {.name = "simulated",
                                       .summary = "ranks in virtual time, with seeded order, delay, loss, stalls and deaths"};

namespace {

struct Slot {
  Arena memory;
  StepId step = 0;  // of the message that has come
  std::int64_t bytes = 0;
};
/// Something of `from` reaches `to`.
struct Delivery {
  enum class Kind { message, finish, poison };
  Kind kind;
  Rank from, to;
  StepId step;
  std::int64_t value;  // bytes of a message, cause of a poison
  Slot* slot;          // of a message
};

struct SimulatedMailbox {
  std::int64_t longest;
  std::vector<Slot> slots;  // [receiver][parity][sender]
};

/// What one rank knows of another.
struct Seen {
  StepId finished = 0, poisoned = 0;
  Rank cause = 0;               // of the poison
  FabricTime last_delivery{0};  // the latest that is under way from the other: messages keep their order
};

struct SimulatedRank {
  bool ended = false, waiting = false, rung = false, dead = false;
  bool loses = false;        // its next message
  StepId step = 0;           // the last that it touched
  std::int64_t touches = 0;  // of that step
  std::condition_variable turn;
  FabricTime until{0};    // of its wait
  FabricTime stalled{0};  // it does not run before
  std::vector<Seen> others;
};

class Simulation {
 public:
  explicit Simulation(const SimulationWishes& wishes)
      : wishes_(wishes), random_(wishes.seed), ranks_(static_cast<std::size_t>(wishes.ranks)) {
    for (SimulatedRank& rank : ranks_) rank.others.resize(ranks_.size());
  }

  void run(const std::function<void(Endpoint&)>& body);

  // Below: called by the rank that runs, so that nothing else changes meanwhile.
  SimulatedRank& rank(Rank r) { return ranks_[static_cast<std::size_t>(r)]; }
  FabricTime now() const { return now_; }
  /// Mailbox number `index`, made by the rank that opens it first.
  SimulatedMailbox& mailbox(std::size_t index, const MailboxSpec& spec);
  SimulatedMailbox& mailbox(int index) { return mailboxes_[static_cast<std::size_t>(index)]; }
  void send(Delivery delivery);
  /// The faults of this rank at this step; returns when a stall is over.
  void touch(Rank r, StepId step);
  /// Lets others run until the bell or the time.
  void wait(Rank r, FabricTime until);

 private:
  void choose_next();
  void deliver_due();
  void pass_on(std::unique_lock<std::mutex>& lock, Rank r);

  const SimulationWishes wishes_;
  std::mt19937_64 random_;
  std::vector<SimulatedRank> ranks_;
  std::deque<SimulatedMailbox> mailboxes_;  // in place while others are opened
  std::vector<SimulatedFault> faults_ = wishes_.faults;
  std::multimap<FabricTime, Delivery> under_way_;  // of equal times in order of sending
  FabricTime now_{0};
  std::mutex mutex_;
  Rank running_ = -1;
};

class SimulatedEndpoint final : public Endpoint {
 public:
  SimulatedEndpoint(Simulation& simulation, Rank rank, Rank ranks) : simulation_(simulation), rank_(rank), ranks_(ranks) {}

  Rank rank() const noexcept override { return rank_; }
  Rank ranks() const noexcept override { return ranks_; }

  int open(const MailboxSpec& spec) override {
    MOTET_CHECK(spec.bytes >= 0, "bytes %lld", static_cast<long long>(spec.bytes));
    simulation_.mailbox(static_cast<std::size_t>(opened_), spec);
    return opened_++;
  }

  std::byte* slot(int mailbox, Rank to, StepId step) noexcept override {
    simulation_.touch(rank_, step);
    if (step > 2 && simulation_.rank(rank_).others[static_cast<std::size_t>(to)].finished < step - 2) return nullptr;
    return place(mailbox, to, rank_, step)->memory.data();
  }
  void post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept override {
    simulation_.touch(rank_, step);
    MOTET_CHECK(bytes >= 0 && bytes <= simulation_.mailbox(mailbox).longest, "bytes %lld", static_cast<long long>(bytes));
    simulation_.send({Delivery::Kind::message, rank_, to, step, bytes, place(mailbox, to, rank_, step)});
  }
  std::optional<ByteSpan> arrived(int mailbox, Rank from, StepId step) noexcept override {
    simulation_.touch(rank_, step);
    const Slot* const slot = place(mailbox, rank_, from, step);
    if (slot->step != step) return std::nullopt;
    return ByteSpan{slot->memory.data(), slot->bytes};
  }

  void finish(StepId step) noexcept override { tell_all(Delivery::Kind::finish, step); }
  void poison(StepId step, Rank cause) noexcept override {
    tell_all(Delivery::Kind::poison, step, cause);
    finish(step);
  }
  std::optional<Rank> poisoned(Rank from, StepId step) const noexcept override {
    const Seen& seen = simulation_.rank(rank_).others[static_cast<std::size_t>(from)];
    if (seen.poisoned < step) return std::nullopt;
    return seen.cause;
  }
  FabricTime now() const noexcept override { return simulation_.rank(rank_).dead ? FabricTime::max() : simulation_.now(); }
  void wait(FabricTime until) noexcept override { simulation_.wait(rank_, until); }

 private:
  Slot* place(int mailbox, Rank to, Rank from, StepId step) noexcept {
    const std::int64_t at = (std::int64_t{to} * 2 + static_cast<std::int64_t>(step % 2)) * ranks_ + from;
    return &simulation_.mailbox(mailbox).slots[static_cast<std::size_t>(at)];
  }
  void tell_all(Delivery::Kind kind, StepId step, Rank cause = 0) noexcept {
    for (Rank to = 0; to < ranks_; ++to) simulation_.send({kind, rank_, to, step, cause, nullptr});
  }

  Simulation& simulation_;
  const Rank rank_, ranks_;
  int opened_ = 0;
};

SimulatedMailbox& Simulation::mailbox(std::size_t index, const MailboxSpec& spec) {
  if (index == mailboxes_.size()) {
    SimulatedMailbox& made = mailboxes_.emplace_back(SimulatedMailbox{spec.bytes, {}});
    made.slots.resize(ranks_.size() * ranks_.size() * 2);
    for (Slot& slot : made.slots) slot.memory = Arena(std::max<std::int64_t>(spec.bytes, 1), spec.purpose);
  }
  return mailboxes_[index];
}

void Simulation::send(Delivery delivery) {
  if (rank(delivery.from).dead) return;
  const auto span = static_cast<std::uint64_t>((wishes_.most_delay - wishes_.least_delay).count());
  const FabricTime delay = wishes_.least_delay + FabricTime(static_cast<std::int64_t>(span == 0 ? 0 : random_() % (span + 1)));
  if (delivery.kind == Delivery::Kind::message && delivery.from != delivery.to) {
    const bool by_chance = static_cast<double>(random_() >> 11) * 0x1p-53 < wishes_.loss;
    if (std::exchange(rank(delivery.from).loses, false) || by_chance) return;
  }
  FabricTime& last = rank(delivery.to).others[static_cast<std::size_t>(delivery.from)].last_delivery;
  last = std::max(last, delivery.from == delivery.to ? now_ : now_ + delay);
  under_way_.emplace(last, delivery);
  deliver_due();  // to itself: at once
}

void Simulation::deliver_due() {
  while (!under_way_.empty() && under_way_.begin()->first <= now_) {
    const Delivery delivery = under_way_.begin()->second;
    under_way_.erase(under_way_.begin());
    SimulatedRank& to = rank(delivery.to);
    Seen& seen = to.others[static_cast<std::size_t>(delivery.from)];
    if (delivery.kind == Delivery::Kind::message) delivery.slot->step = delivery.step, delivery.slot->bytes = delivery.value;
    if (delivery.kind == Delivery::Kind::finish) seen.finished = std::max(seen.finished, delivery.step);
    if (delivery.kind == Delivery::Kind::poison && delivery.step > seen.poisoned)
      seen.poisoned = delivery.step, seen.cause = static_cast<Rank>(delivery.value);
    to.rung = true;
  }
}

void Simulation::choose_next() {
  for (;;) {
    deliver_due();
    std::vector<Rank> able;
    FabricTime next = FabricTime::max();
    bool all_ended = true;
    for (Rank r = 0; r < wishes_.ranks; ++r) {
      const SimulatedRank& each = rank(r);
      if (each.ended) continue;
      all_ended = false;
      const FabricTime from = std::max(each.stalled, !each.waiting || each.rung || each.dead ? FabricTime(0) : each.until);
      if (from <= now_) able.push_back(r);
      next = std::min(next, from);
    }
    if (all_ended || !able.empty()) {
      running_ = all_ended ? -1 : able[random_() % able.size()];
      if (running_ >= 0) rank(running_).turn.notify_one();
      return;
    }
    now_ = under_way_.empty() ? next : std::min(next, under_way_.begin()->first);
  }
}

void Simulation::pass_on(std::unique_lock<std::mutex>& lock, Rank r) {
  choose_next();
  rank(r).turn.wait(lock, [&] { return running_ == r; });
}

void Simulation::wait(Rank r, FabricTime until) {
  std::unique_lock lock(mutex_);
  SimulatedRank& mine = rank(r);
  mine.waiting = true;
  mine.until = until;
  pass_on(lock, r);
  mine.waiting = mine.rung = false;
}

void Simulation::touch(Rank r, StepId step) {
  SimulatedRank& mine = rank(r);
  if (step > mine.step) mine.step = step, mine.touches = 0;
  const std::int64_t before = mine.touches++;
  const auto fault = std::find_if(faults_.begin(), faults_.end(), [&](const SimulatedFault& each) {
    return each.rank == r && (step > each.step || (step == each.step && before >= each.after));
  });
  if (fault == faults_.end()) return;
  const SimulatedFault found = *fault;
  faults_.erase(fault);
  switch (found.kind) {
    case SimulatedFault::Kind::kill:
      mine.dead = true;
      return;
    case SimulatedFault::Kind::lose:
      mine.loses = true;
      return;
    case SimulatedFault::Kind::stall: {
      std::unique_lock lock(mutex_);
      mine.stalled = now_ + found.lasts;
      pass_on(lock, r);
    }
  }
}

void Simulation::run(const std::function<void(Endpoint&)>& body) {
  std::vector<std::thread> threads;
  for (Rank r = 0; r < wishes_.ranks; ++r)
    threads.emplace_back([this, r, &body] {
      {
        std::unique_lock lock(mutex_);
        rank(r).turn.wait(lock, [&] { return running_ == r; });
      }
      SimulatedEndpoint endpoint(*this, r, wishes_.ranks);
      body(endpoint);
      const std::unique_lock lock(mutex_);
      rank(r).ended = true;
      choose_next();
    });
  {
    const std::unique_lock lock(mutex_);
    choose_next();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void simulate(const SimulationWishes& wishes, const std::function<void(Endpoint&)>& body) {
  MOTET_CHECK(wishes.ranks >= 1 && wishes.least_delay <= wishes.most_delay, "ranks %d", wishes.ranks);
  Simulation(wishes).run(body);
}

}  // namespace motet
