// SPDX-License-Identifier: Apache-2.0
#include "runtime/read_buffer.h"

#include <algorithm>
#include <chrono>

#include "base/math.h"
#include "kernels/probe.h"

namespace motet {
namespace {

constexpr std::int64_t kTouchBytes = std::int64_t{1} << 20;  // of one thread between two looks at the clock
static_assert(kReadPiece % kTouchBytes == 0);

double now() noexcept { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

ReadBuffer::Wish read_buffer_wish(std::int64_t last_level, std::int64_t available, std::int64_t page) noexcept {
  // Evidence, Zen 5 with 32 MiB of last-level cache: 64 MiB read 10 to 20 % too fast, from 128 MiB on the size made no difference.
  constexpr std::int64_t kMost = std::int64_t{512} << 20;  // fresh pages of a virtual machine take 1 to 1.5 s of one thread
  const std::int64_t least = std::min(kMost, round_up(std::max(std::int64_t{128} << 20, 2 * last_level), kReadPiece));
  const std::int64_t wanted = std::min(kMost, round_up(std::max(std::int64_t{256} << 20, 4 * last_level), kReadPiece));
  const std::int64_t bytes = std::min(wanted, round_down(available / 4, kReadPiece));  // leave room for others
  return {.bytes = bytes >= least ? bytes : 0, .least = least, .page = page};
}

void ReadBuffer::touch(Executor& executor, double deadline) {
  if (wish_.bytes > 0 && arena_.bytes() == 0) arena_ = Arena(wish_.bytes, "the buffer of the read bandwidth probe");
  struct Work {
    std::byte* data;
    std::int64_t page;
  };
  double begin = now(), round = 0;
  while (touched_ < wish_.bytes && begin + round < deadline) {
    Work work{arena_.data() + touched_, wish_.page};
    const std::int64_t pieces = std::min<std::int64_t>(executor.threads(), (wish_.bytes - touched_) / kTouchBytes);
    executor.run(
        pieces,
        [](void* context, std::int64_t piece, int) noexcept {
          const auto& mine = *static_cast<const Work*>(context);
          for (std::int64_t at = 0; at < kTouchBytes; at += mine.page)
            *reinterpret_cast<volatile std::byte*>(mine.data + piece * kTouchBytes + at) = std::byte{1};
        },
        &work);
    touched_ += pieces * kTouchBytes;
    const double end = now();
    round = end - begin;
    begin = end;
  }
}

std::int64_t ReadBuffer::readable() const { return touched_ >= wish_.least ? round_down(touched_, kReadPiece) : 0; }

}  // namespace motet
