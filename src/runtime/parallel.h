// SPDX-License-Identifier: Apache-2.0
// Splits a range into blocks of a fixed size and runs them on an executor. Which thread runs a block never matters to a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/math.h"
#include "motet/executor.h"

namespace motet {

/// Calls body(begin, end, thread) for blocks of `grain` items that cover [0, count). One block runs on the calling thread as
/// thread 0. The body must be noexcept; nothing is allocated.
template <class Body>
void for_each_block(Executor& executor, std::int64_t count, std::int64_t grain, Body&& body) noexcept {
  if (count <= 0) return;
  if (count <= grain) return body(std::int64_t{0}, count, 0);
  struct Context {
    std::remove_reference_t<Body>* body;
    std::int64_t count, grain;
  } context{std::addressof(body), count, grain};
  executor.run(
      ceil_div(count, grain),
      [](void* opaque, std::int64_t piece, int thread) noexcept {
        const Context& here = *static_cast<const Context*>(opaque);
        const std::int64_t begin = piece * here.grain;
        (*here.body)(begin, std::min(here.count, begin + here.grain), thread);
      },
      &context);
}

/// Items per block so that a block touches about `kBlockElements` elements of rows of `width`.
inline std::int64_t grain_of(std::int64_t width) noexcept {
  constexpr std::int64_t kBlockElements = 16384;  // far above the cost of handing out a piece, far below a token batch
  return std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, width));
}

}  // namespace motet
