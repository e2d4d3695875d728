// SPDX-License-Identifier: Apache-2.0
// Memory that a bandwidth probe reads: written page by page, for as long as there is time for it.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "motet/executor.h"

namespace motet {

class ReadBuffer {
 public:
  /// Holds nothing yet; `bytes` 0 = there is no room for a buffer beyond the caches.
  struct Wish {
    std::int64_t bytes = 0;  ///< wanted, a multiple of kReadPiece
    std::int64_t least = 0;  ///< fewest that give a rate
    std::int64_t page = 4096;
  };
  explicit ReadBuffer(const Wish& wish) : wish_(wish) {}

  /// Writes further pages from where the last call ended, until all are resident or `deadline` (seconds of steady_clock) comes
  /// near: the first write of memory that a virtual machine never used takes 8 to 12 us per 4 KiB.
  void touch(Executor& executor, double deadline);

  const std::byte* data() const { return arena_.data(); }
  /// Written bytes in whole pieces of kReadPiece; 0 while they are fewer than `least`.
  std::int64_t readable() const;

 private:
  Wish wish_;
  Arena arena_;
  std::int64_t touched_ = 0;
};

/// Bytes to read for a DRAM rate on a machine with this last-level cache and free memory: twice the cache or more, but at most
/// 512 MiB. A larger cache is that of a host, which its guests share; may_be_cached says of such a buffer what is known.
ReadBuffer::Wish read_buffer_wish(std::int64_t last_level, std::int64_t available, std::int64_t page) noexcept;

/// Whether `bytes` read again and again may lie in a last-level cache of this size, at least in part.
constexpr bool may_be_cached(std::int64_t bytes, std::int64_t last_level) noexcept { return bytes < 2 * last_level; }

}  // namespace motet
