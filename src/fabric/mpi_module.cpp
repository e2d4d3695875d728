// SPDX-License-Identifier: Apache-2.0
// The mpi fabric: ranks are the processes of one MPI launch. The only file that knows MPI, by calls of MPI 3.1.
//
// A lane is a mailbox at one parity, with a tag of its own; lane 0 is for control. Each lane has two buffers for each peer: one is
// sent from, and one has a receive posted for as long as nothing lies there that may be read.
//   data      a unit with the step and the length, then the message in whole units: an int counts units of 128 bytes
//   control   all that a peer must know of this rank, as it is now, so that one buffer for each peer is enough
// Nothing is called back: MPI moves bytes while drive() looks, thus in every call that finds nothing, and in wait().
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <thread>

#include "base/arena.h"
#include "base/check.h"
#include "base/math.h"
#include "base/spin.h"
#include "base/text.h"
#include "fabric/mpi_module.h"
#include "motet/error.h"

namespace motet {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kUnit = 128;
/// Longer messages need both ends to move on, often many times: the receiver is told that they are under way, and neither end naps
/// for long meanwhile. Evidence: through shared memory without cross memory attach, 16 MiB went at 0.09 GB/s while naps grew to
/// 1 ms, and at 0.6 GB/s so (two ranks of a two-core virtual machine, Open MPI 4.1.4, December 2026).
constexpr std::int64_t kLong = 4096;
/// How long a closing rank waits for one that it has given up, or that has said that it leaves.
constexpr FabricTime kLinger = 1s;

constexpr FabricTime kFirstNap = 20us;

FabricTime clock_now() noexcept { return std::chrono::steady_clock::now().time_since_epoch(); }

/// Between two looks: spins for a while, then sleeps, each time a little longer unless bytes are under way.
class Pause {
 public:
  void once(FabricTime now, FabricTime until, bool under_way = false) noexcept {
    if (now < spin_until_) return relax();
    if (under_way) nap_ = kFirstNap;
    std::this_thread::sleep_for(std::min(nap_, until - now));
    nap_ = std::min<FabricTime>(nap_ * 2, 1ms);
  }

 private:
  const FabricTime spin_until_ = clock_now() + kSpin;
  FabricTime nap_ = kFirstNap;
};

/// Waits for a request until that time; whether it is complete.
bool completes(MPI_Request* request, FabricTime until) noexcept {
  for (Pause pause;;) {
    int done = 0;
    if (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0) return true;
    const FabricTime now = clock_now();
    if (now >= until) return false;
    pause.once(now, until);
  }
}

// --- The process --------------------------------------------------------------------------------------------------------------

/// MPI is started and ended once in a process.
struct Process {
  int open_groups = 0;
  bool whole = true;  // every group was closed by all of its ranks
  FabricTime patience{0};
};
Process& process() {
  static Process the;
  return the;
}

/// At exit, where this module started MPI. MPI_Finalize has no deadline: it is called when all ranks have come here.
void leave() noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  MPI_Request all = MPI_REQUEST_NULL;
  if (process().open_groups == 0 && process().whole && MPI_Ibarrier(MPI_COMM_WORLD, &all) == MPI_SUCCESS &&
      completes(&all, clock_now() + process().patience)) {
    MPI_Finalize();
    return;
  }
  // The launcher ends the others when one leaves so; they may still have to say what happened. Evidence: when one left at once,
  // what another said 5 to 100 ms later was lost in 7 of 24 launches (Open MPI 4.1.4, December 2026).
  std::this_thread::sleep_for(kLinger);
}

void start() {
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0)
    throw Error(ErrorCode::not_supported,
                "a group of fabric 'mpi' needs MPI, which can be started once in a process, but MPI_Finalize was called already; "
                "open the group before");
  if (initialized == 0) {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    std::atexit(leave);
  } else {
    MPI_Query_thread(&level);
  }
  if (level < MPI_THREAD_FUNNELED)
    throw Error(ErrorCode::not_supported,
                "a group of fabric 'mpi' runs beside threads, but MPI was started with MPI_THREAD_SINGLE; start it by "
                "MPI_Init_thread with MPI_THREAD_FUNNELED");
}

// --- A group ------------------------------------------------------------------------------------------------------------------

struct Header {
  StepId step;
  std::int64_t bytes;
};
static_assert(sizeof(Header) <= kUnit);
Header& header(std::byte* message) noexcept { return *reinterpret_cast<Header*>(message); }

/// What a rank says of itself to a peer: always all of it, and no part ever goes back.
struct Control {
  StepId finished = 0, poisoned = 0;
  std::int64_t cause = 0;
  std::int64_t sent = 0;     // data messages to this peer so far
  std::int64_t leaving = 0;  // 1: nothing follows
};

struct Peer {
  Control out, in;      // buffers of MPI
  bool untold = false;  // `out` is under way with less than is known now
  StepId finished = 0;
  StepId poisoned = 0, will_be_poisoned = 0;
  Rank cause = 0, will_be_cause = 0;
  std::int64_t sent = 0, taken = 0;  // data messages to it, from it
  std::int64_t told = 0;             // of those from it, how many it says it has sent
  std::int64_t before_poison = 0;    // of those from it, how many come before the poison is seen
  std::int64_t before_leaving = -1;  // how many come in all, once it has said that it leaves
  FabricTime left{0};                // when it said so
  bool lost = false;                 // MPI failed
  bool doubted = false;              // this rank gave up waiting for it, and has heard nothing since
};

struct Mailbox {
  Arena memory;
  std::int64_t bytes, stride;
};

/// What MPI may write or read until all requests are complete; kept forever when they are not.
struct Memory {
  MPI_Comm group = MPI_COMM_NULL;
  std::vector<Peer> peers;
  std::vector<Mailbox> boxes;
};

class MpiEndpoint final : public Endpoint {
 public:
  explicit MpiEndpoint(FabricTime patience);
  ~MpiEndpoint() override;

  Rank rank() const noexcept override { return rank_; }
  Rank ranks() const noexcept override { return ranks_; }
  int open(const MailboxSpec& spec) override;
  std::byte* slot(int mailbox, Rank to, StepId step) noexcept override;
  void post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept override;
  std::optional<ByteSpan> arrived(int mailbox, Rank from, StepId step) noexcept override;
  void finish(StepId step) noexcept override;
  void poison(StepId step, Rank cause) noexcept override;
  std::optional<Rank> poisoned(Rank from, StepId step) const noexcept override;
  FabricTime now() const noexcept override { return clock_now(); }
  void wait(FabricTime until) noexcept override;

 private:
  enum Kind { receives, sends };
  static int lane_of(int mailbox, StepId step) noexcept { return 1 + mailbox * 2 + static_cast<int>(step % 2); }
  std::size_t at(int lane, Rank rank) const noexcept {
    return static_cast<std::size_t>(lane) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank);
  }
  MPI_Request& request(int lane, Kind kind, Rank peer) noexcept { return requests_[at(lane * 2 + kind, peer)]; }
  Peer& peer(Rank rank) const noexcept { return memory_->peers[static_cast<std::size_t>(rank)]; }
  Mailbox& box_of(int lane) const noexcept { return memory_->boxes[static_cast<std::size_t>((lane - 1) / 2)]; }
  std::byte* outgoing(int lane, Rank to) const noexcept;
  std::byte* incoming(int lane, Rank from) const noexcept;

  void post_receive(int lane, Rank from) noexcept;
  void tell(Rank to) noexcept;
  void tell_all() noexcept;
  void use(int lane) noexcept;
  void drive() noexcept;
  void test(int first_lane, int end_lane) noexcept;
  bool completed(int lane, Kind kind, Rank with) noexcept;
  void hear(Rank from) noexcept;
  void show_poison() noexcept;
  void lose(Rank rank) noexcept;
  bool under_way() const noexcept;
  bool all_over(Rank with) noexcept;
  void close() noexcept;

  const FabricTime patience_;
  Rank rank_ = 0, ranks_ = 1;
  int most_lanes_ = 0;  // by the tags that MPI has
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  MPI_Datatype unit_ = MPI_DATATYPE_NULL;
  int lanes_ = 1;
  int first_used_ = INT_MAX, end_used_ = 0;  // the lanes of this step
  std::vector<MPI_Request> requests_;        // [lane][kind][peer]
  std::vector<StepId> came_;                 // [lane][peer]: of the message that lies in the buffer; 0 = none that may be read
  std::vector<int> indices_;                 // of MPI_Testsome
  std::vector<MPI_Status> statuses_;
  std::int64_t long_sends_ = 0;  // that are not complete
  StepId finished_ = 0, poisoned_ = 0;
  Rank cause_ = 0;
  bool leaving_ = false;
  bool changed_ = false;  // since the last wait
};

MpiEndpoint::MpiEndpoint(FabricTime patience) : patience_(patience) {
  start();
  MPI_Request made = MPI_REQUEST_NULL;
  MPI_Comm_idup(MPI_COMM_WORLD, &memory_->group, &made);
  if (!completes(&made, clock_now() + patience)) {
    memory_.release();  // MPI may write the communicator at any time
    process().whole = false;
    throw Error(
        ErrorCode::rank_missing,
        format_text("all processes of an MPI launch open a group together, but some did not come within %.3g s; see why they "
                    "are late, or wait longer",
                    std::chrono::duration<double>(patience).count()));
  }
  const MPI_Comm group = memory_->group;
  MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
  MPI_Comm_rank(group, &rank_);
  MPI_Comm_size(group, &ranks_);
  int* most_tags = nullptr;
  int known = 0;
  MPI_Comm_get_attr(group, MPI_TAG_UB, &most_tags, &known);
  most_lanes_ = std::min(known != 0 ? *most_tags : 32767, INT_MAX / 2 / ranks_);
  MPI_Type_contiguous(static_cast<int>(kUnit), MPI_BYTE, &unit_);
  MPI_Type_commit(&unit_);
  const auto ranks = static_cast<std::size_t>(ranks_);
  memory_->peers.resize(ranks);
  requests_.resize(2 * ranks, MPI_REQUEST_NULL);
  came_.resize(ranks);
  indices_.resize(2 * ranks);
  statuses_.resize(2 * ranks);
  for (Rank from = 0; from < ranks_; ++from)
    if (from != rank_) post_receive(0, from);
  ++process().open_groups;
  process().patience = std::max(process().patience, patience);
}

std::byte* MpiEndpoint::outgoing(int lane, Rank to) const noexcept {
  const Mailbox& box = box_of(lane);
  return box.memory.data() + (std::int64_t{(lane - 1) % 2} * ranks_ + to) * box.stride;
}
/// A message to itself stays where it was written.
std::byte* MpiEndpoint::incoming(int lane, Rank from) const noexcept {
  if (from == rank_) return outgoing(lane, from);
  const Mailbox& box = box_of(lane);
  const std::int64_t place = std::int64_t{2} * ranks_ + std::int64_t{(lane - 1) % 2} * (ranks_ - 1) + from - (from > rank_ ? 1 : 0);
  return box.memory.data() + place * box.stride;
}

int MpiEndpoint::open(const MailboxSpec& spec) {
  MOTET_CHECK(spec.bytes >= 0, "bytes %lld", static_cast<long long>(spec.bytes));
  Mailbox box = {.memory = {}, .bytes = spec.bytes, .stride = 0};
  const std::int64_t buffers = 2 * (std::int64_t{2} * ranks_ - 1);
  std::int64_t all = 0;
  const bool fits = checked_round_up(spec.bytes, kUnit, &box.stride) && checked_add(box.stride, kUnit, &box.stride) &&
                    box.stride / kUnit <= INT_MAX && checked_mul(buffers, box.stride, &all) && lanes_ + 2 <= most_lanes_;
  const auto refuse = [&] {
    throw Error(
        ErrorCode::would_not_fit,
        format_text("mailbox '%.*s' of %d ranks needs %lld buffers of %lld bytes on each rank, in units of %lld bytes that an "
                    "int counts, and 2 of %d tags, of which %d are taken; use fewer ranks, tokens or layers",
                    static_cast<int>(spec.purpose.size()), spec.purpose.data(), ranks_, static_cast<long long>(buffers),
                    static_cast<long long>(spec.bytes), static_cast<long long>(kUnit), most_lanes_, lanes_));
  };
  if (!fits) refuse();
  box.memory = Arena(all, format_text("mailbox '%.*s'", static_cast<int>(spec.purpose.size()), spec.purpose.data()));
  const auto lanes = static_cast<std::size_t>(lanes_) + 2, ranks = static_cast<std::size_t>(ranks_);
  try {
    came_.resize(lanes * ranks);
    indices_.resize(lanes * 2 * ranks);
    statuses_.resize(lanes * 2 * ranks);
    requests_.resize(lanes * 2 * ranks, MPI_REQUEST_NULL);
    memory_->boxes.push_back(std::move(box));
  } catch (const std::bad_alloc&) {
    refuse();
  }
  for (; lanes_ < static_cast<int>(lanes); ++lanes_)
    for (Rank from = 0; from < ranks_; ++from)
      if (from != rank_) post_receive(lanes_, from);
  return static_cast<int>(memory_->boxes.size()) - 1;
}

void MpiEndpoint::post_receive(int lane, Rank from) noexcept {
  MPI_Request* const request_of = &request(lane, receives, from);
  if (lane > 0) came_[at(lane, from)] = 0;
  const int error = lane == 0 ? MPI_Irecv(&peer(from).in, sizeof(Control), MPI_BYTE, from, 0, memory_->group, request_of)
                              : MPI_Irecv(incoming(lane, from), static_cast<int>(box_of(lane).stride / kUnit), unit_, from, lane,
                                          memory_->group, request_of);
  if (error != MPI_SUCCESS) lose(from);
}

std::byte* MpiEndpoint::slot(int mailbox, Rank to, StepId step) noexcept {
  const int lane = lane_of(mailbox, step);
  use(lane);
  const auto is_free = [&] {
    if (step > 2 && (to == rank_ ? finished_ : peer(to).finished) < step - 2) return false;
    return request(lane, sends, to) == MPI_REQUEST_NULL && !peer(to).lost;
  };
  if (!is_free()) drive();
  return is_free() ? outgoing(lane, to) + kUnit : nullptr;
}

void MpiEndpoint::post(int mailbox, Rank to, StepId step, std::int64_t bytes) noexcept {
  const int lane = lane_of(mailbox, step);
  use(lane);
  MOTET_CHECK(bytes >= 0 && bytes <= box_of(lane).bytes, "bytes %lld of %lld", static_cast<long long>(bytes),
              static_cast<long long>(box_of(lane).bytes));
  std::byte* const buffer = outgoing(lane, to);
  header(buffer) = {.step = step, .bytes = bytes};
  if (to == rank_) {
    came_[at(lane, to)] = step;
    changed_ = true;
    return;
  }
  MPI_Request* const request_of = &request(lane, sends, to);
  MOTET_CHECK(*request_of == MPI_REQUEST_NULL, "step %lld of rank %d", static_cast<long long>(step), to);
  if (peer(to).lost) return;
  ++peer(to).sent;
  const int units = static_cast<int>(1 + ceil_div(bytes, kUnit));
  if (MPI_Isend(buffer, units, unit_, to, lane, memory_->group, request_of) != MPI_SUCCESS) return lose(to);
  if (bytes <= kLong) return;
  ++long_sends_;
  tell(to);
}

std::optional<ByteSpan> MpiEndpoint::arrived(int mailbox, Rank from, StepId step) noexcept {
  const int lane = lane_of(mailbox, step);
  use(lane);
  if (came_[at(lane, from)] != step) drive();
  if (came_[at(lane, from)] != step) return std::nullopt;
  std::byte* const buffer = incoming(lane, from);
  return ByteSpan{buffer + kUnit, header(buffer).bytes};
}

void MpiEndpoint::finish(StepId step) noexcept {
  if (step <= finished_) return;
  finished_ = step;
  for (int lane = 1; lane < lanes_; ++lane)
    for (Rank from = 0; from < ranks_; ++from)
      if (const StepId came = came_[at(lane, from)]; from != rank_ && came != 0 && came <= finished_) post_receive(lane, from);
  drive();  // what came and nobody asked for makes way
  first_used_ = INT_MAX;
  end_used_ = 0;
  tell_all();
}

void MpiEndpoint::poison(StepId step, Rank cause) noexcept {
  if (step > poisoned_) {
    poisoned_ = step;
    cause_ = cause;
  }
  if (cause != rank_) peer(cause).doubted = true;
  if (step > finished_)
    finish(step);
  else
    tell_all();
}

std::optional<Rank> MpiEndpoint::poisoned(Rank from, StepId step) const noexcept {
  if (from == rank_) return poisoned_ >= step ? std::optional(cause_) : std::nullopt;
  const Peer& other = peer(from);
  if (other.lost) return from;
  return other.poisoned >= step ? std::optional(other.cause) : std::nullopt;
}

void MpiEndpoint::wait(FabricTime until) noexcept {
  for (Pause pause;;) {
    drive();
    const FabricTime now = clock_now();
    if (changed_ || now >= until) break;
    pause.once(now, until, under_way());
  }
  changed_ = false;
}

void MpiEndpoint::tell(Rank to) noexcept {
  Peer& other = peer(to);
  MPI_Request* const request_of = &request(0, sends, to);
  other.untold = *request_of != MPI_REQUEST_NULL;
  if (other.untold) return;
  other.out = {.finished = finished_, .poisoned = poisoned_, .cause = cause_, .sent = other.sent, .leaving = leaving_ ? 1 : 0};
  if (MPI_Isend(&other.out, sizeof(Control), MPI_BYTE, to, 0, memory_->group, request_of) != MPI_SUCCESS) lose(to);
}
void MpiEndpoint::tell_all() noexcept {
  for (Rank to = 0; to < ranks_; ++to)
    if (to != rank_) tell(to);
}

void MpiEndpoint::use(int lane) noexcept {
  first_used_ = std::min(first_used_, lane);
  end_used_ = std::max(end_used_, lane + 1);
}

void MpiEndpoint::drive() noexcept {
  if (ranks_ == 1) return;
  test(0, 1);
  test(first_used_, end_used_);
  show_poison();
}

/// Takes what is complete on these lanes, until nothing is.
void MpiEndpoint::test(int first_lane, int end_lane) noexcept {
  for (bool again = first_lane < end_lane; again;) {
    again = false;
    MPI_Request* const requests = &request(first_lane, receives, 0);
    int count = 0;
    const int error = MPI_Testsome((end_lane - first_lane) * 2 * ranks_, requests, &count, indices_.data(), statuses_.data());
    if (count == MPI_UNDEFINED || (error != MPI_SUCCESS && error != MPI_ERR_IN_STATUS)) return;
    for (int i = 0; i < count; ++i) {
      const int place = indices_[static_cast<std::size_t>(i)], row = place / ranks_;
      const Rank with = place % ranks_;
      const Kind kind = row % 2 == 0 ? receives : sends;
      const bool failed = error == MPI_ERR_IN_STATUS && statuses_[static_cast<std::size_t>(i)].MPI_ERROR != MPI_SUCCESS;
      if (failed) lose(with);
      if (!failed || kind == sends) again = completed(first_lane + row / 2, kind, with) || again;
    }
  }
}

/// True when more of the kind may lie behind it.
bool MpiEndpoint::completed(int lane, Kind kind, Rank with) noexcept {
  changed_ = true;
  Peer& other = peer(with);
  if (kind == sends) {
    if (lane == 0 && other.untold) tell(with);
    if (lane > 0 && header(outgoing(lane, with)).bytes > kLong) --long_sends_;
    return false;
  }
  other.doubted = false;
  if (lane == 0) {
    hear(with);
    post_receive(lane, with);
    return true;
  }
  ++other.taken;
  const StepId step = header(incoming(lane, with)).step;
  came_[at(lane, with)] = step;
  if (step > finished_) return false;
  post_receive(lane, with);  // too late: nobody reads it
  return true;
}

void MpiEndpoint::hear(Rank from) noexcept {
  Peer& other = peer(from);
  const Control& said = other.in;
  other.finished = std::max(other.finished, said.finished);
  if (said.poisoned > other.will_be_poisoned) {
    other.will_be_poisoned = said.poisoned;
    other.will_be_cause = static_cast<Rank>(said.cause);
    other.before_poison = said.sent;
  }
  other.told = said.sent;
  if (said.leaving == 0) return;
  other.before_leaving = said.sent;
  other.left = clock_now();
}

/// A poison is seen once what was sent before it has come: a long message may still be under way.
void MpiEndpoint::show_poison() noexcept {
  bool tested = false;
  for (Peer& other : memory_->peers) {
    if (other.will_be_poisoned <= other.poisoned) continue;
    if (other.taken < other.before_poison && !tested) {
      test(1, lanes_);
      tested = true;
    }
    if (other.taken < other.before_poison) continue;
    other.poisoned = other.will_be_poisoned;
    other.cause = other.will_be_cause;
    changed_ = true;
  }
}

/// MPI failed on a peer: for this rank that is the peer's poison, of every step.
void MpiEndpoint::lose(Rank rank) noexcept {
  peer(rank).lost = true;
  changed_ = true;
}

/// Whether a message is on its way that needs this rank to look often.
bool MpiEndpoint::under_way() const noexcept {
  const auto comes = [](const Peer& other) { return other.taken < other.told && !other.lost; };
  return long_sends_ > 0 || std::any_of(memory_->peers.begin(), memory_->peers.end(), comes);
}

// --- The end ------------------------------------------------------------------------------------------------------------------

/// Everything has come from this peer, and has gone to it.
bool MpiEndpoint::all_over(Rank with) noexcept {
  const Peer& other = peer(with);
  if (other.lost || other.untold || other.before_leaving < 0 || other.taken < other.before_leaving) return false;
  for (int lane = 0; lane < lanes_; ++lane)
    if (request(lane, sends, with) != MPI_REQUEST_NULL) return false;
  return true;
}

/// Frees what MPI used. Requires that all is over with every peer: what is left are receives of messages that never were.
void MpiEndpoint::close() noexcept {
  for (MPI_Request& left : requests_) {
    if (left == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&left);
    MPI_Wait(&left, MPI_STATUS_IGNORE);
  }
  MPI_Type_free(&unit_);
  MPI_Comm_free(&memory_->group);
}

MpiEndpoint::~MpiEndpoint() {
  --process().open_groups;
  int finalized = 0;
  MPI_Finalized(&finalized);
  const FabricTime begin = clock_now();
  leaving_ = true;
  if (finalized == 0) tell_all();
  bool over = false, hope = finalized == 0;
  for (Pause pause; hope && !over;) {
    if (ranks_ > 1) test(0, lanes_);
    const FabricTime now = clock_now();
    over = true;
    hope = false;
    for (Rank with = 0; with < ranks_; ++with) {
      if (with == rank_ || all_over(with)) continue;
      over = false;
      const Peer& other = peer(with);
      const bool given_up = other.lost || other.doubted;
      hope = hope || now < (other.before_leaving >= 0 ? std::max(begin, other.left) + kLinger
                            : given_up                ? begin + std::min(patience_, kLinger)
                                                      : begin + patience_);
    }
    if (hope && !over) pause.once(now, now + kLinger, under_way());
  }
  if (over) {
    close();
  } else {
    memory_.release();
    process().whole = false;
  }
}

// --- The module ---------------------------------------------------------------------------------------------------------------

#define MOTET_TEXT_OF(value) #value
#define MOTET_TEXT(value) MOTET_TEXT_OF(value)
#ifdef OMPI_MAJOR_VERSION
constexpr char kBuilt[] = "Open MPI v" MOTET_TEXT(OMPI_MAJOR_VERSION) "." MOTET_TEXT(OMPI_MINOR_VERSION);
std::string running() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view all(text, static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find(',')));
}
#else
constexpr char kBuilt[] = "MPI " MOTET_TEXT(MPI_VERSION) "." MOTET_TEXT(MPI_SUBVERSION);
std::string running() {
  int version = 0, subversion = 0;
  MPI_Get_version(&version, &subversion);
  return format_text("MPI %d.%d", version, subversion);
}
#endif

const MpiModule kModule = {
    .motet_version = MOTET_VERSION,
    .mpi_built = kBuilt,
    .mpi_running = running,
    .endpoint = [](FabricTime patience) -> std::unique_ptr<Endpoint> { return std::make_unique<MpiEndpoint>(patience); }};

}  // namespace
}  // namespace motet

extern "C" [[gnu::visibility("default")]] const motet::MpiModule* motet_mpi_module() { return &motet::kModule; }
