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

namespace motet {
namespace {

constexpr std::int64_t kAlign = 64;

struct Header {
  std::uint64_t contract;
  std::int64_t rows;
};
constexpr std::int64_t kHeaderBytes = kAlign;
static_assert(sizeof(Header) <= kHeaderBytes);

std::uint64_t contract_of(const StrategyTraits& strategy, const ExchangeShape& shape) {
  Hash hash;
  for (const std::int64_t field : {static_cast<std::int64_t>(strategy.unit), static_cast<std::int64_t>(strategy.weight_site),
                                   shape.max_tokens, shape.top_k, shape.width, static_cast<std::int64_t>(shape.wire)})
    hash.add(static_cast<std::uint64_t>(field));
  for (const std::int32_t slot : shape.first_slot) hash.add(static_cast<std::uint64_t>(slot));
  for (const std::int64_t bytes : shape.part_bytes) hash.add(static_cast<std::uint64_t>(bytes));
  hash.add(shape.contract);
  return hash.value();
}

/// Bytes of a message of `rows` records of these sizes, each kind in a run of its own; false when they overflow.
bool message_bytes(std::int64_t rows, std::span<const std::int64_t> kinds, std::int64_t* total) {
  *total = kHeaderBytes;
  for (const std::int64_t bytes : kinds) {
    std::int64_t run = 0;
    if (!checked_mul(rows, bytes, &run) || !checked_round_up(run, kAlign, &run) || !checked_add(*total, run, total)) return false;
  }
  return true;
}

/// Hands out the runs of a message in order.
class Runs {
 public:
  Runs(std::byte* message, std::int64_t rows) : at_(message + kHeaderBytes), rows_(rows) {}
  std::byte* next(std::int64_t bytes) noexcept {
    std::byte* const run = at_;
    at_ += round_up(rows_ * bytes, kAlign);
    return run;
  }
  std::int64_t bytes_from(const std::byte* message) const noexcept { return at_ - message; }

 private:
  std::byte* at_;
  const std::int64_t rows_;
};

std::int64_t wire_bytes(DType wire) noexcept { return wire == DType::bf16 ? 2 : 4; }

void to_wire(const float* row, std::int64_t width, DType wire, std::byte* out) noexcept {
  if (wire == DType::f32) {
    std::memcpy(out, row, static_cast<std::size_t>(width) * 4);
    return;
  }
  auto* const halves = reinterpret_cast<std::uint16_t*>(out);
  for (std::int64_t i = 0; i < width; ++i) halves[i] = f32_to_bf16(row[i]);
}

/// s = fp32(s + t), where t = fp32(w * y) when rows are weighed here.
void add_from_wire(const std::byte* row, std::int64_t width, DType wire, const float* weight, float* sum) noexcept {
  const auto add = [&](auto value) {
    if (weight == nullptr) {
      for (std::int64_t i = 0; i < width; ++i) sum[i] = sum[i] + value(i);
    } else {
      for (std::int64_t i = 0; i < width; ++i) {
        const float term = *weight * value(i);
        sum[i] = sum[i] + term;
      }
    }
  };
  if (wire == DType::f32)
    add([values = reinterpret_cast<const float*>(row)](std::int64_t i) { return values[i]; });
  else
    add([values = reinterpret_cast<const std::uint16_t*>(row)](std::int64_t i) { return bf16_to_f32(values[i]); });
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

Exchange::Exchange(const StrategyTraits& strategy, const ExchangeShape& shape, Endpoint& endpoint)
    : strategy_(strategy),
      shape_(shape),
      endpoint_(endpoint),
      ranks_(endpoint.ranks()),
      contract_(contract_of(strategy, shape)),
      choices_(by_choice() ? 1 : shape.top_k) {
  MOTET_CHECK(shape.first_slot.size() == static_cast<std::size_t>(ranks_) + 1 && shape.part_bytes.size() <= kMaxParts);
  MOTET_CHECK(shape.wire == DType::f32 || shape.wire == DType::bf16);
  const std::int64_t back = shape.width * wire_bytes(shape.wire), ranks = ranks_;
  kinds_ = {4, 4 * choices_, 4 * choices_};  // choice, slot, weight
  kinds_.insert(kinds_.end(), shape.part_bytes.begin(), shape.part_bytes.end());
  const std::int64_t rows_of_token = strategy.unit == RowUnit::whole_batch ? ranks
                                     : by_choice()                         ? shape.top_k
                                                                           : std::min(shape.top_k, ranks);
  std::int64_t choices = 0, dispatch = 0, combine = 0, all_sent = 0, all_rows = 0, all_choices = 0;
  const auto refuse = [&] {
    throw Error(
        ErrorCode::would_not_fit,
        format_text("an exchange of at most %lld tokens of each of %d ranks with top_k %lld has more rows than can be held; "
                    "plan for fewer tokens",
                    static_cast<long long>(shape.max_tokens), ranks_, static_cast<long long>(shape.top_k)));
  };
  const bool fits = checked_mul(shape.max_tokens, shape.top_k, &choices) && choices <= std::numeric_limits<std::int32_t>::max() &&
                    checked_mul(shape.max_tokens, by_choice() ? shape.top_k : 1, &max_rows_) &&
                    message_bytes(max_rows_, kinds_, &dispatch) && message_bytes(max_rows_, {&back, 1}, &combine) &&
                    checked_mul(shape.max_tokens, rows_of_token, &all_sent) && checked_mul(max_rows_, ranks, &all_rows) &&
                    checked_mul(all_rows, choices_, &all_choices);
  if (!fits) refuse();
  dispatch_box_ = endpoint_.open({"dispatched rows", dispatch});
  combine_box_ = endpoint_.open({"combined rows", combine});
  const auto per_rank = static_cast<std::size_t>(ranks_);
  try {
    peers_.resize(per_rank);
    missing_.reserve(per_rank);
    first_sent_.resize(per_rank + 1);
    sent_.resize(static_cast<std::size_t>(all_sent));
    bytes_sent_.resize(per_rank);
    sources_.resize(per_rank);
    slot_.resize(static_cast<std::size_t>(all_choices));
    weight_.resize(static_cast<std::size_t>(all_choices));
  } catch (const std::bad_alloc&) {
    refuse();
  }
}

Exchange::~Exchange() {
  if (state_ != StepState::idle && state_ != StepState::failed) abandon();
}

Rank Exchange::owner(std::int32_t slot) const noexcept {
  const auto& first = shape_.first_slot;
  MOTET_CHECK(slot < first.back(), "slot %d of %d", slot, first.back());
  return static_cast<Rank>(std::upper_bound(first.begin(), first.end(), slot) - first.begin()) - 1;
}

/// sent_: for each rank, ascending, what goes there.
void Exchange::sort_choices() noexcept {
  const std::int64_t top_k = shape_.top_k;
  // Calls take(rank, item) for each row in order of (token, k).
  const auto each_row = [&](auto take) {
    for (std::int64_t token = 0; token < outgoing_.tokens; ++token) {
      const std::int32_t* const slots = outgoing_.slot + token * top_k;
      if (strategy_.unit == RowUnit::whole_batch) {
        for (Rank rank = 0; rank < ranks_; ++rank) take(rank, token);
        continue;
      }
      for (std::int64_t k = 0; k < top_k; ++k) {
        if (slots[k] < 0) continue;
        const Rank rank = owner(slots[k]);
        const bool again =
            !by_choice() && std::any_of(slots, slots + k, [&](std::int32_t s) { return s >= 0 && owner(s) == rank; });
        if (!again) take(rank, by_choice() ? token * top_k + k : token);
      }
    }
  };
  std::fill(first_sent_.begin(), first_sent_.end(), 0);
  each_row([&](Rank rank, std::int64_t) { ++first_sent_[static_cast<std::size_t>(rank) + 1]; });
  for (std::size_t r = 1; r < first_sent_.size(); ++r) first_sent_[r] += first_sent_[r - 1];
  each_row([&](Rank rank, std::int64_t item) {  // first_sent_[rank] runs to the next rank's first ...
    sent_[static_cast<std::size_t>(first_sent_[static_cast<std::size_t>(rank)]++)] = static_cast<std::int32_t>(item);
  });
  for (std::size_t r = first_sent_.size() - 1; r > 0; --r) first_sent_[r] = first_sent_[r - 1];  // ... and comes back
  first_sent_[0] = 0;
}

void Exchange::start_phase(StepState state) noexcept {
  state_ = state;
  std::fill(peers_.begin(), peers_.end(), Peer{});
}

void Exchange::begin(const Outgoing& outgoing, FabricTime deadline) noexcept {
  MOTET_CHECK(state_ == StepState::idle || state_ == StepState::failed, "state %d", static_cast<int>(state_));
  MOTET_CHECK(outgoing.tokens >= 0 && outgoing.tokens <= shape_.max_tokens, "tokens %lld", static_cast<long long>(outgoing.tokens));
  MOTET_CHECK(outgoing.parts.size() == shape_.part_bytes.size());
  outgoing_ = outgoing;
  deadline_ = deadline;
  step_ = endpoint_.next_step();
  failure_ = StepFailure::none;
  missing_.clear();
  std::fill(bytes_sent_.begin(), bytes_sent_.end(), 0);
  sort_choices();
  start_phase(StepState::dispatching);
}

void Exchange::write_header(std::byte* message, std::int64_t rows) const noexcept {
  const Header header = {contract_, rows};
  std::memset(message, 0, kHeaderBytes);
  std::memcpy(message, &header, sizeof header);
}

bool Exchange::send_rows(Rank to) noexcept {
  std::byte* const message = endpoint_.slot(dispatch_box_, to, step_);
  if (message == nullptr) return false;
  const std::int64_t rows = rows_for(to), top_k = shape_.top_k;
  const std::int32_t* const items = sent_.data() + first_sent_[static_cast<std::size_t>(to)];
  const std::int32_t first = shape_.first_slot[static_cast<std::size_t>(to)],
                     end = shape_.first_slot[static_cast<std::size_t>(to) + 1];
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
      slots[row * choices_ + c] = slot >= first && slot < end ? slot - first : -1;
      weights[row * choices_ + c] = weighed_here ? 1.0f : outgoing_.weight[choice];
    }
  for (std::size_t p = 0; p < shape_.part_bytes.size(); ++p) {
    const std::int64_t bytes = shape_.part_bytes[p];
    std::byte* const run = runs.next(bytes);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t token = by_choice() ? items[row] / top_k : items[row];
      std::memcpy(run + row * bytes, outgoing_.parts[p] + token * bytes, static_cast<std::size_t>(bytes));
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
  std::int64_t bytes = 0;
  const bool right = header.contract == contract_ && header.rows >= 0 && header.rows <= most &&
                     message_bytes(header.rows, kinds, &bytes) && bytes == message.bytes;
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
  if (claimed < 0) return refuse_message(from);
  Runs runs(const_cast<std::byte*>(message->data), claimed);
  SourceRows& source = sources_[static_cast<std::size_t>(from)];
  source.rows = claimed;
  source.choice = reinterpret_cast<const std::int32_t*>(runs.next(4));
  runs.next(4 * choices_);  // slots and weights: publish_received()
  runs.next(4 * choices_);
  for (std::size_t p = 0; p < shape_.part_bytes.size(); ++p) source.parts[p] = runs.next(shape_.part_bytes[p]);
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
  for (std::int64_t row = 0; row < source.rows; ++row)
    to_wire(rows_ + (source.first + row) * rows_stride_, shape_.width, shape_.wire, out + row * bytes);
  bytes_sent_[static_cast<std::size_t>(to)] += runs.bytes_from(message);
  endpoint_.post(combine_box_, to, step_, runs.bytes_from(message));
  return true;
}

/// Token by token: rows of ranks in order of rank, or rows of choices in order of k.
void Exchange::add_sums() noexcept {
  const std::int64_t width = shape_.width, top_k = shape_.top_k, bytes = width * wire_bytes(shape_.wire);
  std::fill_n(routed_, outgoing_.tokens * width, 0.0f);
  const auto row_of = [&](Rank from, std::int64_t row) {
    return peers_[static_cast<std::size_t>(from)].message + kHeaderBytes + row * bytes;
  };
  if (!by_choice()) {
    for (Rank from = 0; from < ranks_; ++from)
      for (std::int64_t row = 0; row < rows_for(from); ++row)
        add_from_wire(row_of(from, row), width, shape_.wire, nullptr,
                      routed_ + sent_[static_cast<std::size_t>(first_sent_[static_cast<std::size_t>(from)] + row)] * width);
    return;
  }
  // Rows of a rank lie in order of (token, k).
  for (std::int64_t choice = 0; choice < outgoing_.tokens * top_k; ++choice) {
    if (outgoing_.slot[choice] < 0) continue;
    const Rank from = owner(outgoing_.slot[choice]);
    add_from_wire(row_of(from, peers_[static_cast<std::size_t>(from)].added++), width, shape_.wire,
                  strategy_.weight_site == WeightSite::combine ? outgoing_.weight + choice : nullptr,
                  routed_ + choice / top_k * width);
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
bool Exchange::phase_done() noexcept {
  const bool dispatching = state_ == StepState::dispatching;
  bool all = true;
  for (Rank rank = 0; rank < ranks_; ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.sent) peer.sent = dispatching ? send_rows(rank) : send_sums(rank);
    if (peer.message == nullptr) peer.message = dispatching ? take_rows(rank) : take_sums(rank);
    if (state_ == StepState::failed) return false;
    all = all && peer.sent && peer.message != nullptr;
  }
  return all;
}

StepState Exchange::poll() noexcept {
  if (state_ != StepState::dispatching && state_ != StepState::combining) return state_;
  // The clock and the poison first: what came before either is then seen. A rank whose sums have come may have left a later step.
  const bool late = endpoint_.now() >= deadline_;
  missing_.clear();
  for (Rank rank = 0; rank < ranks_; ++rank) {
    const auto cause = endpoint_.poisoned(rank, step_);
    if (!cause || (state_ == StepState::combining && endpoint_.arrived(combine_box_, rank, step_))) continue;
    if (std::find(missing_.begin(), missing_.end(), *cause) == missing_.end()) missing_.push_back(*cause);
  }
  const bool poisoned = !missing_.empty();
  if (phase_done()) {
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
