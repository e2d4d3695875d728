// SPDX-License-Identifier: Apache-2.0
// How the rows of the live slots are cut into pieces.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/math.h"

namespace motet {

/// Pieces are numbered block by block, all slots of block 0 first: a thread that owns a run of pieces gets the same rows of every
/// slot, so that uneven slots stay even between threads. Blocks begin at multiples of 32 rows.
struct Split {
  static constexpr std::int64_t kUnit = 32;              ///< rows: kernels work on slabs of this size at least
  static constexpr std::int64_t kPieceBytes = 64 << 10;  ///< weights: below it, handing out a piece costs as much as streaming it
  static constexpr std::int64_t kPiecesPerThread = 4;

  std::int64_t live = 0, rows = 0, blocks = 1;
  std::int64_t pieces() const noexcept { return live * blocks; }
  std::int64_t slot(std::int64_t piece) const noexcept { return piece % live; }
  std::int64_t begin(std::int64_t piece) const noexcept {
    return std::min(rows, piece / live * ceil_div(rows, kUnit) / blocks * kUnit);
  }
  std::int64_t end(std::int64_t piece) const noexcept {
    return std::min(rows, (piece / live + 1) * ceil_div(rows, kUnit) / blocks * kUnit);
  }
};

struct SplitWish {
  std::int64_t live = 0, rows = 0;  ///< slots that have tokens, rows of each
  std::int64_t row_bytes = 0;       ///< weight bytes that one row reads
  std::int64_t tokens = 1;          ///< of all slots: more tokens make a piece worth more
  std::int64_t threads = 1;
};

inline Split split(const SplitWish& wish) noexcept {
  Split out{wish.live, wish.rows, 1};
  const std::int64_t per_slot = std::max<std::int64_t>(1, wish.tokens / std::max<std::int64_t>(1, wish.live));
  const std::int64_t worth = std::max<std::int64_t>(
      1, wish.rows * std::max<std::int64_t>(1, wish.row_bytes) * std::min<std::int64_t>(per_slot, 64) / Split::kPieceBytes);
  const std::int64_t wanted = wish.threads * ceil_div(Split::kPiecesPerThread, std::max<std::int64_t>(1, wish.live));
  out.blocks = std::max<std::int64_t>(1, std::min({wanted, worth, ceil_div(wish.rows, Split::kUnit)}));
  return out;
}

}  // namespace motet
