// SPDX-License-Identifier: Apache-2.0
// A worker that lost its processor between two loads missed the end of its pool: whoever ended a pool right after a run then waited
// forever, on a busy machine or with more threads than processors.
#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace motet {
namespace {

TEST(PoolNeverEnded, APoolOfMoreThreadsThanProcessorsEndsRightAfterARun) {
  for (int round = 0; round < 20000; ++round) {  // seen within 13000
    ThreadPool pool(8);
    pool.run(2, [](void*, std::int64_t, int) noexcept {}, nullptr);
  }
}

}  // namespace
}  // namespace motet
