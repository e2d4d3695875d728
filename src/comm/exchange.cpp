// SPDX-License-Identifier: Apache-2.0
#include "comm/exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "base/check.h"
#include "base/math.h"
#include "base/numbers.h"
#include "base/text.h"
#include "comm/hash.h"
#include "motet/error.h"
#include "plan/sizes.h"

namespace motet {
namespace {

struct Header {
  std::uint64_t contract;
  std::int64_t rows;
  std::int64_t chunk, forward_tokens;
};
constexpr std::int64_t kHeaderBytes = kMessageAlign;
static_assert(sizeof(Header) <= kHeaderBytes);

std::uint64_t contract_of(const StrategyTraits& strategy, const ExchangeShape& shape) {
  Hash hash;
  for (const std::int64_t field :
       {static_cast<std::int64_t>(strategy.unit), static_cast<std::int64_t>(strategy.weight_site), shape.max_tokens,
        shape.forward_tokens, shape.top_k, shape.width, static_cast<std::int64_t>(shape.wire)})
    hash.add(static_cast<std::uint64_t>(field));
  for (const SlotRange& range : shape.slots) {
    hash.add(static_cast<std::uint64_t>(range.begin));
    hash.add(static_cast<std::uint64_t>(range.end));
  }
  for (const std::int64_t bytes : shape.part_bytes) hash.add(static_cast<std::uint64_t>(bytes));
  hash.add(shape.contract);
  return hash.value();
}

/// Hands out the runs of a message in order.
class Runs {
 public:
  Runs(std::byte* message, std::int64_t rows) : at_(message + kHeaderBytes), rows_(rows) {}
  std::byte* next(std::int64_t bytes) noexcept {
    std::byte* const run = at_;
    at_ += round_up(rows_ * bytes, kMessageAlign);
    return run;
  }
  std::int64_t bytes_from(const std::byte* message) const noexcept { return at_ - message; }

 private:
  std::byte* at_;
  const std::int64_t rows_;
};

std::int64_t wire_bytes(DType wire) noexcept { return wire == DType::bf16 ? 2 : 4; }

/// Whether each is above the one before it, from 0 to below `end`.
bool ascend(const std::int32_t* items, std::int64_t count, std::int64_t end) noexcept {
  std::int64_t last = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    if (items[i] <= last) return false;
    last = items[i];
  }
  return last < end;
}

/// Rows for another rank are stored around the caches: what it read two steps ago is in its cache, from which every line would have
/// to be taken first. Evidence: a step of one token of 7168 takes 10 us, and 15 with cached stores (bench/exchange_bench between
/// two cores, Zen 3, December 2026). Rows that this rank reads itself only where they are too long to be found in a cache.
constexpr Stores kToOthers = Stores::around;
Stores stores_to_self(std::int64_t bytes) noexcept { return bytes < std::int64_t{8} << 20 ? Stores::cached : Stores::around; }

const ElementKernels& elements_of_target(const std::string& target) {
  const ElementKernels* const elements = find_elements(target.empty() ? "generic" : target);
  MOTET_CHECK(elements != nullptr, "target %s", target.c_str());
  return *elements;
}

}  // namespace

std::string_view name_of(StepFailure failure) noexcept {
  switch (failure) {
    case StepFailure::none:
      return "none";
    case StepFailure::timeout:
      return "timeout";
    case StepFailure::poisoned:
      return "poisoned";
    case StepFailure::contract_mismatch:
      return "contract_mismatch";
    case StepFailure::abandoned:
      return "abandoned";
  }
  return "none";
}

Exchange::Exchange(const StrategyTraits& strategy, const ExchangeShape& shape, Endpoint& endpoint, ExchangeBoxes* boxes)
    : strategy_(strategy),
      shape_(shape),
      endpoint_(endpoint),
      elements_(elements_of_target(shape.target)),
      ranks_(endpoint.ranks()),
      contract_(contract_of(strategy, shape)) {
  MOTET_CHECK(shape.slots.size() == static_cast<std::size_t>(ranks_) && shape.part_bytes.size() <= kMaxParts);
  MOTET_CHECK(shape.wire == DType::f32 || shape.wire == DType::bf16);
  std::int32_t slots = 0;
  for (const SlotRange& range : shape.slots) slots = std::max(slots, range.end);
  const auto per_rank = static_cast<std::size_t>(ranks_);
  first_holder_.push_back(0);
  std::int64_t holders = 1;
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const SlotRange& range = shape.slots[static_cast<std::size_t>(rank)];
      if (slot >= range.begin && slot < range.end) holder_.push_back(rank);
    }
    holders = std::max(holders, static_cast<std::int64_t>(holder_.size()) - first_holder_.back());
    first_holder_.push_back(static_cast<std::int32_t>(holder_.size()));
  }
  const ExchangeSizes sizes = exchange_sizes(strategy, {.ranks = ranks_,
                                                        .holders = holders,
                                                        .tokens = shape.max_tokens,
                                                        .top_k = shape.top_k,
                                                        .width = shape.width,
                                                        .wire = shape.wire,
                                                        .part_bytes = shape.part_bytes});
  choices_ = sizes.choices;
  max_rows_ = sizes.rows_to_rank;
  kinds_ = dispatched_row_bytes(choices_, shape.part_bytes);
  const auto refuse = [&] {
    throw Error(
        ErrorCode::would_not_fit,
        format_text("an exchange of at most %lld tokens of each of %d ranks with top_k %lld has more rows than can be held; "
                    "plan for fewer tokens",
                    static_cast<long long>(shape.max_tokens), ranks_, static_cast<long long>(shape.top_k)));
  };
  if (bounded_product({shape.max_tokens, shape.top_k}) > std::numeric_limits<std::int32_t>::max() ||
      sizes.mailbox_bytes > kLargestSize || sizes.handle_bytes > kLargestSize)
    refuse();
  open_boxes(sizes, boxes);
  try {
    peers_.resize(per_rank);
    terms_.reserve(static_cast<std::size_t>(by_choice() ? shape.top_k * holders : ranks_));
    missing_.reserve(per_rank);
    first_sent_.resize(per_rank + 1);
    sent_.resize(static_cast<std::size_t>(sizes.rows_sent));
    last_sent_.resize(per_rank);
    bytes_sent_.resize(per_rank);
    waited_.resize(per_rank);
    sources_.resize(per_rank);
    slot_.resize(static_cast<std::size_t>(sizes.rows_received * choices_));
    weight_.resize(static_cast<std::size_t>(sizes.rows_received * choices_));
  } catch (const std::bad_alloc&) {
    refuse();
  }
}

/// Every rank decides alike: sizes and boxes are equal on all.
void Exchange::open_boxes(const ExchangeSizes& sizes, ExchangeBoxes* boxes) {
  ExchangeBoxes own;
  ExchangeBoxes& use = boxes == nullptr ? own : *boxes;
  if (dispatches() && use.dispatch_bytes < sizes.dispatch_bytes) {
    use.dispatch = endpoint_.open({"dispatched rows", sizes.dispatch_bytes});
    use.dispatch_bytes = sizes.dispatch_bytes;
  }
  if (use.combine_bytes < sizes.combine_bytes) {
    use.combine = endpoint_.open({"combined rows", sizes.combine_bytes});
    use.combine_bytes = sizes.combine_bytes;
  }
  dispatch_box_ = use.dispatch;
  combine_box_ = use.combine;
}

Exchange::~Exchange() {
  if (state_ != StepState::idle && state_ != StepState::failed) abandon();
}

std::span<const Rank> Exchange::holders(std::int32_t slot) const noexcept {
  const auto at = static_cast<std::size_t>(slot);
  MOTET_CHECK(at + 1 < first_holder_.size(), "slot %d", slot);
  const auto begin = static_cast<std::size_t>(first_holder_[at]);
  return {holder_.data() + begin, static_cast<std::size_t>(first_holder_[at + 1]) - begin};
}

/// sent_: for each rank, ascending, what goes there.
void Exchange::sort_choices() noexcept {
  const std::int64_t top_k = shape_.top_k;
  // Calls take(rank, item) for each row in order of (token, k).
  const auto each_row = [&](auto take) {
    for (std::int64_t token = 0; token < outgoing_.tokens; ++token) {
      const std::int32_t* const slots = outgoing_.slot + token * top_k;
      if (strategy_.unit == RowUnit::whole_batch || strategy_.unit == RowUnit::none) {
        for (Rank rank = 0; rank < ranks_; ++rank) take(rank, token);
        continue;
      }
      for (std::int64_t k = 0; k < top_k; ++k) {
        if (slots[k] < 0) continue;
        for (const Rank rank : holders(slots[k])) {
          std::int32_t& last = last_sent_[static_cast<std::size_t>(rank)];
          if (!by_choice() && last == token) continue;  // it has the token already
          last = static_cast<std::int32_t>(token);
          take(rank, by_choice() ? token * top_k + k : token);
        }
      }
    }
  };
  std::fill(first_sent_.begin(), first_sent_.end(), 0);
  std::fill(last_sent_.begin(), last_sent_.end(), -1);
  each_row([&](Rank rank, std::int64_t) { ++first_sent_[static_cast<std::size_t>(rank) + 1]; });
  for (std::size_t r = 1; r < first_sent_.size(); ++r) first_sent_[r] += first_sent_[r - 1];
  std::fill(last_sent_.begin(), last_sent_.end(), -1);
  each_row([&](Rank rank, std::int64_t item) {  // first_sent_[rank] runs to the next rank's first ...
    sent_[static_cast<std::size_t>(first_sent_[static_cast<std::size_t>(rank)]++)] = static_cast<std::int32_t>(item);
  });
  for (std::size_t r = first_sent_.size() - 1; r > 0; --r) first_sent_[r] = first_sent_[r - 1];  // ... and comes back
  first_sent_[0] = 0;
}

void Exchange::start_phase(StepState state) noexcept {
  state_ = state;
  std::fill(peers_.begin(), peers_.end(), Peer{});
  phase_begin_ = endpoint_.now();
}

void Exchange::begin(const Outgoing& outgoing, FabricTime deadline) noexcept {
  MOTET_CHECK(state_ == StepState::idle || state_ == StepState::failed, "state %d", static_cast<int>(state_));
  MOTET_CHECK(outgoing.tokens >= 0 && outgoing.tokens <= shape_.max_tokens, "tokens %lld", static_cast<long long>(outgoing.tokens));
  MOTET_CHECK(outgoing.forward_tokens <= most_forward_tokens(), "forward_tokens %lld",
              static_cast<long long>(outgoing.forward_tokens));
  MOTET_CHECK(outgoing.parts.size() == shape_.part_bytes.size());
  outgoing_ = outgoing;
  forward_tokens_ = 0;
  combine_deadline_ = deadline;
  // A rank that lacks rows says whom it lacks before one that only lacks that rank's sums comes to its deadline.
  deadline_ = deadline - (deadline - endpoint_.now()) / 8;
  step_ = endpoint_.next_step();
  failure_ = StepFailure::none;
  missing_.clear();
  std::fill(bytes_sent_.begin(), bytes_sent_.end(), 0);
  std::fill(waited_.begin(), waited_.end(), FabricTime(0));
  sort_choices();
  start_phase(StepState::dispatching);
  if (dispatches()) return;
  for (SourceRows& source : sources_) source = {.first = 0, .rows = outgoing.tokens};  // what goes back to each rank
  received_ = {};
  state_ = StepState::received;
}

void Exchange::write_header(std::byte* message, std::int64_t rows) const noexcept {
  const Header header = {contract_, rows, outgoing_.chunk, std::max(outgoing_.forward_tokens, outgoing_.tokens)};
  std::memset(message, 0, kHeaderBytes);
  std::memcpy(message, &header, sizeof header);
}

bool Exchange::send_rows(Rank to) noexcept {
  std::byte* const message = endpoint_.slot(dispatch_box_, to, step_);
  if (message == nullptr) return false;
  const std::int64_t rows = rows_for(to), top_k = shape_.top_k;
  const std::int32_t* const items = sent_.data() + first_sent_[static_cast<std::size_t>(to)];
  const auto [first, end] = shape_.slots[static_cast<std::size_t>(to)];
  const bool weighed_here = strategy_.weight_site == WeightSite::combine;
  write_header(message, rows);
  Runs runs(message, rows);
  std::memcpy(runs.next(4), items, static_cast<std::size_t>(rows) * 4);
  auto* const slots = reinterpret_cast<std::int32_t*>(runs.next(4 * choices_));
  auto* const weights = reinterpret_cast<float*>(runs.next(4 * choices_));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t c = 0; c < choices_; ++c) {
      const std::int64_t choice = by_choice() ? items[row] : items[row] * top_k + c;
      const std::int32_t slot = outgoing_.slot[choice];
      slots[row * choices_ + c] = slot >= first && slot < end ? slot : -1;
      weights[row * choices_ + c] = weighed_here ? 1.0f : outgoing_.weight[choice];
    }
  for (std::size_t p = 0; p < shape_.part_bytes.size(); ++p) {
    const std::int64_t bytes = shape_.part_bytes[p];
    std::byte* const run = runs.next(bytes);
    for (std::int64_t row = 0; to != endpoint_.rank() && row < rows; ++row) {  // else they are read where they are
      const std::int64_t token = by_choice() ? items[row] / top_k : items[row];
      elements_.copy(outgoing_.parts[p] + token * bytes, bytes, run + row * bytes, kToOthers);
    }
  }
  bytes_sent_[static_cast<std::size_t>(to)] += runs.bytes_from(message);
  endpoint_.post(dispatch_box_, to, step_, runs.bytes_from(message));
  return true;
}

/// The rows that a message says it holds, or -1 when it is none of this contract or does not hold them: it may come from another
/// process.
std::int64_t Exchange::rows_claimed(ByteSpan message, std::span<const std::int64_t> kinds, std::int64_t most) const noexcept {
  Header header{};
  if (message.bytes < kHeaderBytes) return -1;
  std::memcpy(&header, message.data, sizeof header);
  const bool right = header.contract == contract_ && header.chunk == outgoing_.chunk && header.rows >= 0 && header.rows <= most &&
                     message_bytes(header.rows, kinds) == message.bytes;
  return right ? header.rows : -1;
}

const std::byte* Exchange::refuse_message(Rank from) noexcept {
  missing_.assign(1, from);
  fail(StepFailure::contract_mismatch);
  return nullptr;
}

const std::byte* Exchange::take_sums(Rank from) noexcept {
  const auto message = endpoint_.arrived(combine_box_, from, step_);
  if (!message) return nullptr;
  const std::int64_t bytes = shape_.width * wire_bytes(shape_.wire);
  if (rows_claimed(*message, {&bytes, 1}, rows_for(from)) != rows_for(from)) return refuse_message(from);
  return message->data;
}

const std::byte* Exchange::take_rows(Rank from) noexcept {
  const auto message = endpoint_.arrived(dispatch_box_, from, step_);
  if (!message) return nullptr;
  const std::int64_t claimed = rows_claimed(*message, kinds_, max_rows_);
  const bool own = from == endpoint_.rank();
  if (claimed < 0 || (own && claimed != rows_for(from))) return refuse_message(from);
  Header header{};
  std::memcpy(&header, message->data, sizeof header);
  if (header.forward_tokens < 0 || header.forward_tokens > most_forward_tokens()) return refuse_message(from);
  Runs runs(const_cast<std::byte*>(message->data), claimed);
  SourceRows& source = sources_[static_cast<std::size_t>(from)];
  source.rows = claimed;
  forward_tokens_ = std::max(forward_tokens_, header.forward_tokens);
  source.choice = reinterpret_cast<const std::int32_t*>(runs.next(4));
  if (!ascend(source.choice, claimed, shape_.max_tokens * (by_choice() ? shape_.top_k : 1))) return refuse_message(from);
  runs.next(4 * choices_);  // slots and weights: publish_received()
  runs.next(4 * choices_);
  if (own) source.choice = sent_.data() + first_sent_[static_cast<std::size_t>(from)];
  source.own = !own ? 0 : by_choice() ? shape_.top_k : 1;
  for (std::size_t p = 0; p < shape_.part_bytes.size(); ++p)
    source.parts[p] = own ? outgoing_.parts[p] : runs.next(shape_.part_bytes[p]);
  return message->data;
}

void Exchange::publish_received() noexcept {
  std::int64_t rows = 0;
  for (std::size_t from = 0; from < sources_.size(); ++from) {
    SourceRows& source = sources_[from];
    source.first = rows;
    const auto choices = static_cast<std::size_t>(source.rows * choices_);
    Runs runs(const_cast<std::byte*>(peers_[from].message), source.rows);
    runs.next(4);
    std::memcpy(slot_.data() + rows * choices_, runs.next(4 * choices_), choices * 4);
    std::memcpy(weight_.data() + rows * choices_, runs.next(4 * choices_), choices * 4);
    rows += source.rows;
  }
  received_ = {.rows = rows, .choices = choices_, .slot = slot_.data(), .weight = weight_.data(), .sources = sources_};
  state_ = StepState::received;
}

const Received& Exchange::received() const noexcept {
  MOTET_CHECK(state_ == StepState::received, "state %d", static_cast<int>(state_));
  return received_;
}

void Exchange::combine(const float* rows, std::int64_t stride, float* routed) noexcept {
  MOTET_CHECK(state_ == StepState::received, "state %d", static_cast<int>(state_));
  rows_ = rows;
  rows_stride_ = stride;
  routed_ = routed;
  deadline_ = combine_deadline_;
  start_phase(StepState::combining);
}

bool Exchange::send_sums(Rank to) noexcept {
  std::byte* const message = endpoint_.slot(combine_box_, to, step_);
  if (message == nullptr) return false;
  const SourceRows& source = sources_[static_cast<std::size_t>(to)];
  write_header(message, source.rows);
  const std::int64_t bytes = shape_.width * wire_bytes(shape_.wire);
  Runs runs(message, source.rows);
  std::byte* const out = runs.next(bytes);
  if (to != endpoint_.rank())  // else add_sums() reads the rows where they are
    for (std::int64_t row = 0; row < source.rows; ++row)
      elements_.send_as(shape_.wire, rows_ + (source.first + row) * rows_stride_, shape_.width, out + row * bytes, kToOthers);
  bytes_sent_[static_cast<std::size_t>(to)] += runs.bytes_from(message);
  endpoint_.post(combine_box_, to, step_, runs.bytes_from(message));
  return true;
}

/// The next row of a rank, for the sum of one token.
void Exchange::add_term(Rank from, const float* weight) noexcept {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  const std::int64_t row = peer.added++;
  if (from == endpoint_.rank())
    terms_.push_back(
        {.unrounded = rows_ + (sources_[static_cast<std::size_t>(from)].first + row) * rows_stride_, .weight = weight});
  else
    terms_.push_back({.stored = peer.message + kHeaderBytes + row * shape_.width * wire_bytes(shape_.wire), .weight = weight});
}

/// Token by token: rows of ranks in order of rank, or rows of choices in order of k. Rows of a rank lie in order of (token, k).
void Exchange::add_sums() noexcept {
  const std::int64_t top_k = shape_.top_k;
  const Stores stores = stores_to_self(outgoing_.tokens * shape_.width * 4);
  for (std::int64_t token = 0; token < outgoing_.tokens; ++token) {
    terms_.clear();
    for (Rank from = 0; !by_choice() && from < ranks_; ++from) {
      const std::int64_t next = peers_[static_cast<std::size_t>(from)].added;
      if (next < rows_for(from) && sent_[static_cast<std::size_t>(first_sent_[static_cast<std::size_t>(from)] + next)] == token)
        add_term(from, nullptr);
    }
    for (std::int64_t choice = token * top_k; by_choice() && choice < (token + 1) * top_k; ++choice) {
      if (outgoing_.slot[choice] < 0) continue;
      for (const Rank from : holders(outgoing_.slot[choice]))
        add_term(from, strategy_.weight_site == WeightSite::combine ? outgoing_.weight + choice : nullptr);
    }
    elements_.sum_rows(shape_.wire, terms_, shape_.width, routed_ + token * shape_.width, stores);
  }
}

void Exchange::fail(StepFailure failure) noexcept {
  failure_ = failure;
  state_ = StepState::failed;
  endpoint_.poison(step_, missing_.empty() ? endpoint_.rank() : missing_.front());
}

void Exchange::abandon() noexcept {
  MOTET_CHECK(state_ != StepState::idle && state_ != StepState::failed, "state %d", static_cast<int>(state_));
  fail(StepFailure::abandoned);
}

/// Sends and takes what it can. False while something is to come, or when the step failed.
bool Exchange::phase_done(FabricTime now) noexcept {
  const bool dispatching = state_ == StepState::dispatching;
  bool all = true;
  for (Rank rank = 0; rank < ranks_; ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.sent) peer.sent = dispatching ? send_rows(rank) : send_sums(rank);
    if (peer.message == nullptr) {
      peer.message = dispatching ? take_rows(rank) : take_sums(rank);
      if (state_ == StepState::failed) return false;
      if (peer.message != nullptr) waited_[static_cast<std::size_t>(rank)] += now - phase_begin_;
    }
    all = all && peer.sent && peer.message != nullptr;
  }
  return all;
}

StepState Exchange::poll() noexcept {
  if (state_ != StepState::dispatching && state_ != StepState::combining) return state_;
  // The clock and the poison first: what came before either is then seen. A rank whose sums have come may have left a later step.
  const FabricTime now = endpoint_.now();
  const bool late = now >= deadline_;
  missing_.clear();
  for (Rank rank = 0; rank < ranks_; ++rank) {
    const auto cause = endpoint_.poisoned(rank, step_);
    if (!cause || (state_ == StepState::combining && endpoint_.arrived(combine_box_, rank, step_))) continue;
    if (std::find(missing_.begin(), missing_.end(), *cause) == missing_.end()) missing_.push_back(*cause);
  }
  const bool poisoned = !missing_.empty();
  if (phase_done(now)) {
    if (state_ == StepState::dispatching) {
      publish_received();
    } else {
      add_sums();
      endpoint_.finish(step_);
      state_ = StepState::idle;
    }
    missing_.clear();
  } else if (state_ != StepState::failed && poisoned) {
    fail(StepFailure::poisoned);
  } else if (state_ != StepState::failed && late) {
    for (Rank rank = 0; rank < ranks_; ++rank) {
      const Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (!peer.sent || peer.message == nullptr) missing_.push_back(rank);
    }
    fail(StepFailure::timeout);
  }
  return state_;
}

StepState Exchange::wait() noexcept {
  while (poll() == StepState::dispatching || state_ == StepState::combining) endpoint_.wait(deadline_);
  return state_;
}

}  // namespace motet
