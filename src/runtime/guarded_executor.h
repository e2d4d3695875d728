// SPDX-License-Identifier: Apache-2.0
// A caller's executor whose pieces run under Motet's floating-point state: subnormals give the same bits on every thread,
// whatever flush-to-zero flag the caller's threads carry.
#pragma once

#include "base/fp_state.h"
#include "motet/executor.h"

namespace motet {

class GuardedExecutor final : public Executor {
 public:
  explicit GuardedExecutor(Executor& inner) : inner_(inner) {}
  int threads() const noexcept override { return inner_.threads(); }

  void run(std::int64_t pieces, void (*body)(void* context, std::int64_t piece, int thread) noexcept,
           void* context) noexcept override {
    struct Call {
      void (*body)(void*, std::int64_t, int) noexcept;
      void* context;
    } call{body, context};
    inner_.run(
        pieces,
        [](void* opaque, std::int64_t piece, int thread) noexcept {
          const DefaultFpState guard;
          const Call& here = *static_cast<const Call*>(opaque);
          here.body(here.context, piece, thread);
        },
        &call);
  }

 private:
  Executor& inner_;
};

}  // namespace motet
