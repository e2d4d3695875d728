// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine between two processes of this host over shared memory, without experts: 7168 bf16 hidden states, 8 of 256
// experts chosen uniformly at random, so that nearly every token goes to both ranks. Rows that came are read before rows go back,
// which no time counts. Right before the steps of each round both processes copy as many bytes as they send in them, at the same
// time, from one large buffer to another; and before all rounds a cache line goes back and forth between them. Times are medians
// over rounds.
//
// usage: exchange_bench [--json] [--rounds=N] [--target=NAME] [STRATEGY | bf16 | f32 | TOKENS]...
// Words select cells: exchange_bench alltoall bf16 4096. Each rank is bound to a processor of its own where there are two.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/cpu_features.h"
#include "base/spin.h"
#include "comm/exchange.h"
#include "kernels/elements.h"
#include "motet/error.h"
#include "plan/exchange.h"

namespace motet {
namespace {

constexpr Rank kRanks = 2;
constexpr std::int64_t kWidth = 7168, kTopK = 8, kMostTokens = 65536;
constexpr std::int32_t kExperts = 256;
constexpr int kWarmUps = 3, kMostRounds = 99, kBounces = 1000;
constexpr std::int64_t kLargeBuffer = std::int64_t{128} << 20;  // well above the last cache

struct Target {
  const char *name, *flags;
};
constexpr Target kTargets[] = {
#define MOTET_TARGET_LINE(name, flags, needs) {#name, flags},
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
};

/// The best target of this processor.
std::string best_target() {
  for (const Target& target : kTargets) {
    const std::string flags = target.flags;
    bool usable = true;
    for (std::size_t at = 0; at < flags.size();) {
      const std::size_t end = std::min(flags.find(';', at), flags.size());
      usable = usable && has_instructions(this_cpu(), flags.substr(at, end - at));
      at = end + 1;
    }
    if (usable) return target.name;
  }
  return "generic";
}

struct Options {
  bool json = false;
  int rounds = 9;
  std::string target = best_target();
  std::vector<std::int64_t> tokens;
  std::vector<std::string> words;
};

struct Cell {
  const StrategyTraits* strategy;
  DType wire;
  std::int64_t tokens;
};

/// Microseconds of one step.
struct Round {
  double dispatch = 0, combine = 0, both = 0, copy = 0;
};

/// What the two processes write for the first one, and where they wait for each other.
struct Shared {
  std::atomic<int> came{0};
  alignas(128) std::atomic<int> ball{0};
  alignas(128) Round rounds[kRanks][kMostRounds];
  double round_trips[kMostRounds];
  std::int64_t sent[kRanks], crossed[kRanks];
};

double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Values>
double median(Values values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void meet(Shared& shared, int& meetings) {
  ++meetings;
  shared.came.fetch_add(1);
  while (shared.came.load() < meetings * kRanks) relax();
}

void bounce(Shared& shared, Rank rank, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const double start = now_us();
    for (int i = 0; i < kBounces; ++i) {
      const int turn = 2 * (round * kBounces + i);
      while (shared.ball.load(std::memory_order_acquire) != turn + rank) relax();
      shared.ball.store(turn + rank + 1, std::memory_order_release);
    }
    shared.round_trips[round] = (now_us() - start) / kBounces;
  }
}

void bind_to_processor(Rank rank) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < kRanks) return;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || seen++ != rank) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

ExchangeShape shape_of(const Cell& cell, const Options& options) {
  ExchangeShape shape{.max_tokens = cell.tokens, .top_k = kTopK, .width = kWidth, .wire = cell.wire, .target = options.target};
  for (Rank rank = 0; rank < kRanks; ++rank) shape.slots.push_back({rank * kExperts / kRanks, (rank + 1) * kExperts / kRanks});
  if (cell.strategy->unit != RowUnit::none) shape.part_bytes = {kWidth * 2};
  return shape;
}

std::int64_t mailboxes_of(const Cell& cell, const ExchangeShape& shape) {
  return kRanks * exchange_sizes(*cell.strategy, {.ranks = kRanks,
                                                  .holders = 1,
                                                  .tokens = cell.tokens,
                                                  .top_k = kTopK,
                                                  .width = kWidth,
                                                  .wire = cell.wire,
                                                  .part_bytes = shape.part_bytes})
                      .mailbox_bytes;
}

/// Distinct experts of each token.
std::vector<std::int32_t> draw_slots(std::int64_t tokens, Rank rank) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::vector<std::int32_t> slots;
  while (static_cast<std::int64_t>(slots.size()) < tokens * kTopK) {
    const auto slot = static_cast<std::int32_t>(random() % static_cast<unsigned>(kExperts));
    const auto token = slots.end() - static_cast<std::ptrdiff_t>(slots.size() % kTopK);
    if (std::find(token, slots.end(), slot) == slots.end()) slots.push_back(slot);
  }
  return slots;
}

/// Memory as a layer has it, all of it touched.
Arena filled(std::int64_t bytes, int value) {
  Arena arena(bytes, "a benchmark's rows");
  std::memset(arena.data(), value, static_cast<std::size_t>(bytes));
  return arena;
}

/// As experts do, so that the lines are where they would be when they are written again.
void read_lines(const std::byte* from, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) asm volatile("" : : "r"(static_cast<unsigned char>(from[i])));
}

/// One rank of a cell.
void run_rank(const Cell& cell, const Options& options, int segment, std::int64_t reserve, Rank rank, Shared& shared) {
  bind_to_processor(rank);
  int meetings = 0;
  const auto endpoint = shm_endpoint(segment, reserve, rank, kRanks);
  const ExchangeShape shape = shape_of(cell, options);
  Exchange exchange(*cell.strategy, shape, *endpoint);
  const std::vector<std::int32_t> slots = draw_slots(cell.tokens, rank);
  const std::vector<float> weights(slots.size(), 0.125f);
  const Arena hidden = filled(cell.tokens * kWidth * 2, 0x3e), routed = filled(cell.tokens * kWidth * 4, 0);
  Arena rows;
  const std::byte* const part = hidden.data();
  Outgoing outgoing{.tokens = cell.tokens, .slot = slots.data(), .weight = weights.data()};
  if (!shape.part_bytes.empty()) outgoing.parts = {&part, 1};
  const auto step = [&](Round& times) {
    const double start = now_us();
    exchange.begin(outgoing, endpoint->now() + std::chrono::seconds(60));
    if (exchange.wait() != StepState::received) throw Error(ErrorCode::rank_missing, "a dispatch failed");
    const double middle = now_us();
    const std::int64_t came = shape.part_bytes.empty() ? cell.tokens : exchange.received().rows;
    if (rows.bytes() == 0) rows = filled(came * kWidth * 4, 0x3e);  // as many come in each step
    if (!shape.part_bytes.empty())
      for (const SourceRows& source : exchange.received().sources)
        for (std::int64_t row = 0; row < source.rows; ++row)
          read_lines(source.parts[0] + source.place(row) * kWidth * 2, kWidth * 2);
    const double resumed = now_us();
    exchange.combine(reinterpret_cast<const float*>(rows.data()), kWidth, reinterpret_cast<float*>(routed.data()));
    if (exchange.wait() != StepState::idle) throw Error(ErrorCode::rank_missing, "a combine failed");
    const double end = now_us();
    times.dispatch += middle - start;
    times.combine += end - resumed;
    times.both += (middle - start) + (end - resumed);
  };
  const std::int64_t steps = std::max<std::int64_t>(1, 256 / cell.tokens);
  Round ignored;
  for (int i = 0; i < kWarmUps; ++i) step(ignored);
  for (Rank to = 0; to < kRanks; ++to) {
    shared.sent[rank] += exchange.bytes_sent(to);
    if (to != rank) shared.crossed[rank] += exchange.bytes_sent(to);
  }
  const std::int64_t bytes = shared.sent[rank], buffer = std::min(bytes, kLargeBuffer);
  const Arena from = filled(buffer, 1), to = filled(buffer, 2);
  meet(shared, meetings);
  bounce(shared, rank, options.rounds);
  for (int r = 0; r < options.rounds; ++r) {
    Round& times = shared.rounds[rank][r];
    meet(shared, meetings);
    const double start = now_us();
    for (std::int64_t s = 0; s < steps; ++s)
      for (std::int64_t left = bytes; left > 0; left -= buffer) {
        std::memcpy(to.data(), from.data(), static_cast<std::size_t>(std::min(left, buffer)));
        asm volatile("" : : "r"(to.data()) : "memory");
      }
    meet(shared, meetings);
    times.copy = now_us() - start;
    for (std::int64_t s = 0; s < steps; ++s) step(times);
    for (double* const time : {&times.dispatch, &times.combine, &times.both, &times.copy}) *time /= static_cast<double>(steps);
  }
  meet(shared, meetings);
}

/// Bytes of memory that processes could still take; 0 when unknown.
std::int64_t available_memory() {
  long long kib = 0;
  char line[128];
  std::FILE* const file = std::fopen("/proc/meminfo", "r");
  while (file != nullptr && std::fgets(line, sizeof line, file) != nullptr)
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  if (file != nullptr) std::fclose(file);
  return kib * 1024;
}

/// Both ranks of a cell in processes of their own; false when one failed.
bool run_cell(const Cell& cell, const Options& options, Shared& shared) {
  const std::int64_t reserve = mailboxes_of(cell, shape_of(cell, options)) + endpoint_bytes(kRanks);
  const int segment = shm_segment(kRanks, reserve);
  std::vector<pid_t> children;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        run_rank(cell, options, segment, reserve, rank, shared);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        _exit(1);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  close(segment);
  bool good = true;
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    good = good && status == 0;
  }
  return good;
}

/// Median over rounds of the later rank's time.
double median_of(const Shared& shared, int rounds, double Round::*time) {
  std::vector<double> values;
  for (int r = 0; r < rounds; ++r) values.push_back(std::max(shared.rounds[0][r].*time, shared.rounds[1][r].*time));
  return median(values);
}

void print_cell(const Cell& cell, const Options& options, const Shared& shared, bool first) {
  const double dispatch = median_of(shared, options.rounds, &Round::dispatch),
               combine = median_of(shared, options.rounds, &Round::combine), both = median_of(shared, options.rounds, &Round::both),
               copy = median_of(shared, options.rounds, &Round::copy),
               round_trip = median(std::vector<double>(shared.round_trips, shared.round_trips + options.rounds));
  std::vector<double> ratios;
  for (int r = 0; r < options.rounds; ++r) {
    const auto later = [&](double Round::*time) { return std::max(shared.rounds[0][r].*time, shared.rounds[1][r].*time); };
    ratios.push_back(later(&Round::both) / later(&Round::copy));
  }
  const std::string name(cell.strategy->name), wire(cell.wire == DType::bf16 ? "bf16" : "f32");
  const auto sent = static_cast<long long>(shared.sent[0] + shared.sent[1]),
             crossed = static_cast<long long>(shared.crossed[0] + shared.crossed[1]), tokens = static_cast<long long>(cell.tokens);
  if (options.json)
    std::printf(
        "%s\n  {\"strategy\": \"%s\", \"wire\": \"%s\", \"tokens\": %lld, \"dispatch_us\": %.2f, \"combine_us\": %.2f, "
        "\"both_us\": %.2f, \"bytes_sent\": %lld, \"bytes_to_the_other\": %lld, \"copy_us\": %.2f, \"both_over_copy\": "
        "%.3f, \"round_trip_us\": %.3f, \"both_over_round_trip\": %.1f}",
        first ? "[" : ",", name.c_str(), wire.c_str(), tokens, dispatch, combine, both, sent, crossed, copy, median(ratios),
        round_trip, both / round_trip);
  else
    std::printf("%-16s %-4s %6lld %11.2f %11.2f %11.2f %10.3f %10.3f %11.2f %7.2f %8.3f %9.1f\n", name.c_str(), wire.c_str(),
                tokens, dispatch, combine, both, static_cast<double>(sent) * 1e-6, static_cast<double>(crossed) * 1e-6, copy,
                median(ratios), round_trip, both / round_trip);
  std::fflush(stdout);
}

bool is_wire(const std::string& word) { return word == "bf16" || word == "f32"; }
bool is_strategy(const std::string& word) { return find_strategy(word) != nullptr; }

/// True when `value` is among the words of its kind, or there are none.
bool selected(const Options& options, bool (*is_kind)(const std::string&), std::string_view value) {
  bool any = false;
  for (const std::string& word : options.words) {
    if (word == value) return true;
    any = any || is_kind(word);
  }
  return !any;
}

int run(const Options& options) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  if (!options.json)
    std::printf(
        "target %s, %d rounds; us of the later rank; MB of both ranks\n%-16s %-4s %6s %11s %11s %11s %10s %10s %11s %7s %8s "
        "%9s\n",
        options.target.c_str(), options.rounds, "strategy", "wire", "tokens", "dispatch", "combine", "both", "MB sent", "MB across",
        "copy", "/copy", "r.trip", "/r.trip");
  bool first = true;
  for (const StrategyTraits* strategy : all_strategies())
    for (const DType wire : {DType::bf16, DType::f32})
      for (const std::int64_t tokens : options.tokens) {
        const Cell cell{strategy, wire, tokens};
        if (!selected(options, is_strategy, strategy->name) || !selected(options, is_wire, wire == DType::bf16 ? "bf16" : "f32"))
          continue;
        const std::int64_t needed = mailboxes_of(cell, shape_of(cell, options)) * 3 / 2;
        if (needed > available_memory()) {
          std::fprintf(stderr, "skipped: %s at %lld tokens takes about %lld MB\n", std::string(strategy->name).c_str(),
                       static_cast<long long>(tokens), static_cast<long long>(needed / 1000000));
          continue;
        }
        Shared& shared = *new (memory) Shared();
        if (!run_cell(cell, options, shared)) return 1;
        print_cell(cell, options, shared, first);
        first = false;
      }
  if (options.json) std::printf("%s\n]\n", first ? "[" : "");
  return 0;
}

}  // namespace
}  // namespace motet

int main(int argc, char** argv) {
  motet::Options options;
  bool good = true;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const long long number = std::atoll(word.c_str());
    if (word == "--json")
      options.json = true;
    else if (word.starts_with("--rounds="))
      options.rounds = std::clamp(std::atoi(word.c_str() + 9), 1, motet::kMostRounds);
    else if (word.starts_with("--target="))
      options.target = word.substr(9);
    else if (number > 0 && number <= motet::kMostTokens)
      options.tokens.push_back(number);
    else if (motet::is_wire(word) || motet::is_strategy(word))
      options.words.push_back(word);
    else
      good = false;
  }
  if (!good || motet::find_elements(options.target) == nullptr) {
    std::fprintf(stderr, "usage: exchange_bench [--json] [--rounds=N] [--target=NAME] [STRATEGY | bf16 | f32 | TOKENS]...\n");
    return 2;
  }
  if (options.tokens.empty()) options.tokens = {1, 16, 128, 4096};
  return motet::run(options);
}
