// SPDX-License-Identifier: Apache-2.0
#include "run_ranks.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <numeric>
#include <system_error>
#include <thread>

#include "interrupt.h"

namespace motet::cli {
namespace {

/// Tokens [begin, begin + count) of a rank.
struct Share {
  std::int64_t begin = 0, count = 0;
};
Share share_of(std::int64_t tokens, const Plan& plan, std::int64_t rank) {
  if (plan.deployment.placement == TokenPlacement::replicated) return {0, tokens};
  const auto ranks = static_cast<std::int64_t>(plan.ranks.size());
  const std::int64_t begin = tokens / ranks * rank + std::min(rank, tokens % ranks);
  return {begin, tokens / ranks + (rank < tokens % ranks ? 1 : 0)};
}

/// Memory of this process and of those that it starts, zeros at first.
class SharedBytes {
 public:
  explicit SharedBytes(std::int64_t bytes) : bytes_(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw Error(ErrorCode::would_not_fit, fmt::format("{} bytes for the results of ranks were refused; use fewer tokens", bytes));
  }
  ~SharedBytes() { munmap(data_, bytes_); }
  SharedBytes(const SharedBytes&) = delete;
  SharedBytes& operator=(const SharedBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/// What ranks leave behind, in memory that all of them see: results of all tokens, and of each rank how it went.
class Board {
 public:
  struct Outcome {
    ErrorCode code;
    char message[1024];
  };

  Board(const Plan& plan, std::int64_t tokens, std::int64_t repeat)
      : ranks_(static_cast<std::int64_t>(plan.ranks.size())),
        repeat_(repeat),
        experts_(plan.spec.experts),
        output_bytes_(plan.output(tokens).rows * plan.output(tokens).cols * bits_of(plan.deployment.input) / 8),
        choices_(tokens * plan.spec.top_k),
        memory_(size()) {}

  Outcome& outcome(std::int64_t rank) { return at<Outcome>(0)[rank]; }
  ForwardStats& stats(std::int64_t rank, std::int64_t round) { return at<ForwardStats>(1)[rank * repeat_ + round]; }
  PeerStats* peers(std::int64_t rank, std::int64_t round) { return at<PeerStats>(2) + (rank * repeat_ + round) * ranks_; }
  std::int64_t* load(std::int64_t rank) { return at<std::int64_t>(3) + rank * experts_; }
  std::byte* output() { return at<std::byte>(4); }
  std::int32_t* index() { return at<std::int32_t>(5); }
  float* weights() { return at<float>(6); }

 private:
  std::int64_t part_bytes(int part) const {
    const std::int64_t bytes[] = {ranks_ * std::int64_t{sizeof(Outcome)}, ranks_ * repeat_ * std::int64_t{sizeof(ForwardStats)},
                                  ranks_ * repeat_ * ranks_ * std::int64_t{sizeof(PeerStats)}, ranks_ * experts_ * 8, output_bytes_, choices_ * 4, choices_ * 4};
    return (bytes[part] + 63) / 64 * 64;
  }
  std::int64_t offset(int part) const {
    std::int64_t sum = 0;
    for (int before = 0; before < part; ++before) sum += part_bytes(before);
    return sum;
  }
  std::int64_t size() const { return offset(6) + part_bytes(6); }
  template <class T>
  T* at(int part) { return reinterpret_cast<T*>(memory_.data() + offset(part)); }

  const std::int64_t ranks_, repeat_, experts_, output_bytes_, choices_;
  SharedBytes memory_;
};

/// One rank, from its layer to its last forward.
class RankBody {
 public:
  RankBody(const Plan& plan, const std::shared_ptr<const LayerWeights>& weights, const RunInput& input, const RankWishes& wishes, Board& board)
      : plan_(plan), weights_(weights), input_(input), wishes_(wishes), board_(board) {}

  void run(std::shared_ptr<Group> group) const noexcept {
    const std::int64_t rank = group->rank();
    Board::Outcome& outcome = board_.outcome(rank);
    try {
      const std::unique_ptr<Layer> layer = Layer::create(plan_, weights_, wishes_.hooks, nullptr, std::move(group));
      forwards(*layer, rank);
      outcome.code = ErrorCode::ok;
    } catch (const Error& error) {
      note(outcome, error.code(), error.what());
    } catch (const std::bad_alloc&) {
      note(outcome, ErrorCode::would_not_fit, "the operating system gave no more memory; use fewer tokens or ranks");
    } catch (const std::exception& error) {
      note(outcome, ErrorCode::internal, error.what());
    }
  }

 private:
  static void note(Board::Outcome& outcome, ErrorCode code, const char* text) {
    outcome.code = code;
    std::strncpy(outcome.message, text, sizeof outcome.message - 1);
  }

  void forwards(Layer& layer, std::int64_t rank) const {
    const LayerSpec& spec = plan_.spec;
    const Share mine = share_of(input_.tokens, plan_, rank);
    const std::int64_t row_bytes = spec.hidden * bits_of(input_.dtype) / 8, first_choice = mine.begin * spec.top_k;
    ForwardInput in = input_.view(spec);
    in.hidden_states = {input_.hidden_states.data() + mine.begin * row_bytes, input_.dtype, mine.count, spec.hidden};
    if (in.router_logits.data != nullptr) {
      const std::int64_t scored = in.router_logits.cols;
      in.router_logits = {input_.router_logits.data() + mine.begin * scored, DType::f32, mine.count, scored};
    }
    if (in.top_k_index != nullptr) in.top_k_index += first_choice;
    if (in.top_k_weights != nullptr) in.top_k_weights += first_choice;
    if (in.token_ids != nullptr) in.token_ids += mine.begin;
    // Replicated tokens: all ranks have the same result, rank 0 leaves it. The others write to memory of their own.
    const bool writes = plan_.deployment.placement == TokenPlacement::sharded || rank == 0;
    std::vector<std::byte> own(writes ? 0 : static_cast<std::size_t>(mine.count * row_bytes));
    ForwardOutput out;
    out.output = {writes ? board_.output() + mine.begin * row_bytes : own.data(), plan_.deployment.input, mine.count, spec.hidden};
    out.top_k_index = writes ? board_.index() + first_choice : nullptr;
    out.top_k_weights = writes ? board_.weights() + first_choice : nullptr;
    // A rank that stops leaves all rounds that are left, so that every rank has taken as many steps as any other.
    const auto leave_from = [&](std::int64_t round) { for (; round < wishes_.repeat; ++round) layer.leave(); };
    for (std::int64_t round = 0; round < wishes_.repeat; ++round) {
      if (interrupted()) {
        leave_from(round);
        stop_if_interrupted();
      }
      const RunStatus status = layer.forward(in, out);
      if (!status.ok()) {
        leave_from(round + 1);
        throw Error(status.code, std::string(status.text()));
      }
      board_.stats(rank, round) = layer.stats();
      std::copy_n(layer.peers(), plan_.ranks.size(), board_.peers(rank, round));
    }
    std::copy_n(layer.expert_load(), spec.experts, board_.load(rank));
  }

  const Plan& plan_;
  const std::shared_ptr<const LayerWeights>& weights_;
  const RunInput& input_;
  const RankWishes& wishes_;
  Board& board_;
};

void run_threads(const Plan& plan, const GroupOptions& options, const RankBody& body) {
  std::vector<std::shared_ptr<Group>> groups = Group::threads(static_cast<int>(plan.ranks.size()), options);
  enum Start { wait, go, stop };  // a rank begins when all have a thread
  std::atomic<Start> start{wait};
  std::vector<std::thread> threads;
  std::string refused;
  try {
    for (std::shared_ptr<Group>& group : groups)
      threads.emplace_back([&body, &start, &group] {
        start.wait(wait);
        if (start == go) body.run(std::move(group));
      });
  } catch (const std::system_error& error) {
    refused = error.what();
  }
  start = refused.empty() ? go : stop;
  start.notify_all();
  for (std::thread& thread : threads) thread.join();
  if (!refused.empty()) throw Error(ErrorCode::would_not_fit, fmt::format("{} ranks are as many threads, but starting rank {} was refused ({}); use fewer ranks", groups.size(), threads.size(), refused));
}

/// Rank 0 is this process, the others are children; one that dies is named on the board.
void run_processes(const Plan& plan, const GroupOptions& options, const RankBody& body, Board& board) {
  const auto ranks = static_cast<int>(plan.ranks.size());
  const int memory = Group::shared_memory(ranks, options);
  std::vector<std::shared_ptr<Group>> groups;  // before the first fork: what is refused is refused while there is one process
  try {
    for (int rank = 0; rank < ranks; ++rank) groups.push_back(Group::join(memory, rank, ranks, options));
  } catch (...) {
    close(memory);
    throw;
  }
  close(memory);
  std::vector<pid_t> children;
  for (std::size_t rank = 1; rank < groups.size(); ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      body.run(std::move(groups[rank]));
      _exit(0);
    }
    if (child < 0) {
      const int error = errno;
      for (const pid_t started : children) kill(started, SIGKILL), waitpid(started, nullptr, 0);
      throw Error(ErrorCode::would_not_fit, fmt::format("{} ranks are as many processes, but starting rank {} was refused ({}); use fewer ranks, or --fabric threads", ranks, rank, strerror(error)));
    }
    children.push_back(child);
  }
  body.run(std::move(groups[0]));
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    if (waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    Board::Outcome& outcome = board.outcome(static_cast<std::int64_t>(i) + 1);
    outcome.code = ErrorCode::rank_missing;
    std::strncpy(outcome.message, fmt::format("a rank must end its steps, but its process ended early ({}); see what it said", WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an error").c_str(),
                 sizeof outcome.message - 1);
  }
}

/// What one rank has left on its own board, as bytes for the board of rank 0.
class Parcel {
 public:
  Parcel(const Plan& plan, const RunInput& input, std::int64_t repeat, Board& board, std::int64_t rank) {
    const auto ranks = static_cast<std::int64_t>(plan.ranks.size());
    const Share share = share_of(input.tokens, plan, rank);
    const bool writes = plan.deployment.placement == TokenPlacement::sharded || rank == 0;
    const std::int64_t tokens = writes ? share.count : 0, row_bytes = plan.spec.hidden * bits_of(input.dtype) / 8, first_choice = share.begin * plan.spec.top_k;
    add(&board.outcome(rank), 1);
    add(&board.stats(rank, 0), repeat);
    add(board.peers(rank, 0), repeat * ranks);
    add(board.load(rank), plan.spec.experts);
    add(board.output() + share.begin * row_bytes, tokens * row_bytes);
    add(board.index() + first_choice, tokens * plan.spec.top_k);
    add(board.weights() + first_choice, tokens * plan.spec.top_k);
  }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [data, size] : pieces_) sum += static_cast<std::int64_t>(size);
    return sum;
  }
  std::vector<std::byte> pack() const {
    std::vector<std::byte> result;
    for (const auto& [data, size] : pieces_) result.insert(result.end(), data, data + size);
    return result;
  }
  /// False when that is not a parcel of this rank.
  bool unpack(const std::vector<std::byte>& from) const {
    if (static_cast<std::int64_t>(from.size()) != bytes()) return false;
    const std::byte* next = from.data();
    for (const auto& [data, size] : pieces_) {
      if (size > 0) std::memcpy(data, next, size);
      next += size;
    }
    return true;
  }

 private:
  template <class T>
  void add(T* data, std::int64_t count) { pieces_.emplace_back(reinterpret_cast<std::byte*>(data), static_cast<std::size_t>(count) * sizeof(T)); }

  std::vector<std::pair<std::byte*, std::size_t>> pieces_;
};

/// Each process has a board of its own; rank 0 collects them.
void run_mpi(const Plan& plan, const RunInput& input, const RankWishes& wishes, const RankBody& body, Board& board) {
  body.run(wishes.mpi);
  const auto ranks = static_cast<std::int64_t>(plan.ranks.size());
  std::int64_t most = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) most = std::max(most, Parcel(plan, input, wishes.repeat, board, rank).bytes());
  const auto parcels = wishes.mpi->gather(Parcel(plan, input, wishes.repeat, board, wishes.mpi->rank()).pack(), most);
  for (std::size_t rank = 1; rank < parcels.size(); ++rank) {
    const auto at = static_cast<std::int64_t>(rank);
    if (Parcel(plan, input, wishes.repeat, board, at).unpack(parcels[rank])) continue;
    board.outcome(at).code = ErrorCode::rank_missing;
    std::strncpy(board.outcome(at).message, "it did not report by the deadline; look what became of it, or allow more time (--deadline)", sizeof board.outcome(at).message - 1);
  }
}

/// A rank that says what went wrong with itself before one that only lost another.
void throw_worst(Board& board, std::int64_t ranks) {
  const auto weight = [](ErrorCode code) { return code == ErrorCode::ok ? 0 : code == ErrorCode::step_left ? 1 : code == ErrorCode::rank_missing ? 2 : 3; };
  std::int64_t worst = 0;
  for (std::int64_t rank = 1; rank < ranks; ++rank)
    if (weight(board.outcome(rank).code) > weight(board.outcome(worst).code)) worst = rank;
  if (board.outcome(worst).code != ErrorCode::ok) throw Error(board.outcome(worst).code, fmt::format("rank {}: {}", worst, board.outcome(worst).message));
}

/// The slowest rank of each stage and in all, the work of all.
ForwardStats merged(Board& board, const Plan& plan, std::int64_t tokens, std::int64_t round) {
  ForwardStats sum;
  for (std::int64_t rank = 0; rank < static_cast<std::int64_t>(plan.ranks.size()); ++rank) {
    const ForwardStats& each = board.stats(rank, round);
    for (int stage = 0; stage <= static_cast<int>(StageId::tail); ++stage) sum.seconds[stage] = std::max(sum.seconds[stage], each.seconds[stage]);
    sum.total_seconds = std::max(sum.total_seconds, each.total_seconds);
    sum.rows += each.rows;
    sum.experts_used += plan.ranks[static_cast<std::size_t>(rank)].tp_rank == 0 ? each.experts_used : 0;
    sum.weight_bytes += each.weight_bytes;
    sum.flops += each.flops;
  }
  sum.tokens = tokens;
  return sum;
}

}  // namespace

double RanksRun::imbalance() const {
  std::int64_t most = 0, sum = 0;
  for (const RankReport& rank : ranks) most = std::max(most, rank.rows), sum += rank.rows;
  return sum == 0 ? 1 : static_cast<double>(most) * static_cast<double>(ranks.size()) / static_cast<double>(sum);
}

std::int64_t tokens_of_a_rank(std::int64_t tokens, const Deployment& deployment) {
  const std::int64_t ranks = deployment.tp * deployment.ep;
  return deployment.placement == TokenPlacement::replicated ? tokens : (tokens + ranks - 1) / ranks;
}

RanksRun run_on_ranks(const Plan& plan, const std::shared_ptr<const LayerWeights>& weights, const RunInput& input, const RankWishes& wishes,
                      const RanksOutput& output) {
  const auto ranks = static_cast<std::int64_t>(plan.ranks.size());
  constexpr std::int64_t kMostRecords = std::int64_t{1} << 30;  // of one rank, one forward and one peer
  if (wishes.repeat > kMostRecords / (ranks * ranks))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} ranks keep the times of at most {} forwards, but --repeat is {}; repeat less often", ranks, kMostRecords / (ranks * ranks), wishes.repeat));
  Board board(plan, input.tokens, wishes.repeat);
  const RankBody body(plan, weights, input, wishes, board);
  if (wishes.mpi != nullptr) {
    run_mpi(plan, input, wishes, body, board);
    if (const std::int64_t mine = wishes.mpi->rank(); mine != 0) {
      if (board.outcome(mine).code != ErrorCode::ok) throw Error(board.outcome(mine).code, fmt::format("rank {}: {}", mine, board.outcome(mine).message));
      return {};
    }
  } else {
    const GroupOptions options{.mailbox_bytes = mailbox_bytes_of(plan), .deadline = wishes.deadline};
    plan.deployment.fabric == "shm" ? run_processes(plan, options, body, board) : run_threads(plan, options, body);
  }
  stop_if_interrupted();
  throw_worst(board, ranks);

  const auto choices = static_cast<std::size_t>(input.tokens * plan.spec.top_k);
  std::memcpy(output.output, board.output(), static_cast<std::size_t>(input.tokens * plan.spec.hidden * bits_of(plan.deployment.input) / 8));
  std::copy_n(board.index(), choices, output.top_k_index);
  std::copy_n(board.weights(), choices, output.top_k_weights);
  RanksRun run;
  for (std::int64_t round = 0; round < wishes.repeat; ++round) run.stats.push_back(merged(board, plan, input.tokens, round));
  std::vector<std::size_t> order(run.stats.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return run.stats[a].total_seconds < run.stats[b].total_seconds; });
  const auto median = static_cast<std::int64_t>(order[order.size() / 2]);
  run.load.assign(static_cast<std::size_t>(plan.spec.experts), 0);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const ForwardStats& stats = board.stats(rank, median);
    run.ranks.push_back({stats.tokens, stats.rows, stats.total_seconds, {board.peers(rank, median), board.peers(rank, median) + ranks}});
    if (plan.ranks[static_cast<std::size_t>(rank)].tp_rank > 0) continue;  // the same rows, another part of each expert
    for (std::size_t e = 0; e < run.load.size(); ++e) run.load[e] += board.load(rank)[e];
  }
  return run;
}

}  // namespace motet::cli
