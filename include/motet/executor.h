// SPDX-License-Identifier: Apache-2.0
// Where pieces of work run. A caller may bring its own threads; Motet's pinned pool is used when it does not.
#pragma once

#include <cstdint>

namespace motet {

/// Runs pieces on threads. `run` is called from one thread at a time.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual int threads() const noexcept = 0;
  /// Calls body(context, piece, thread) once for each piece in [0, pieces), thread in [0, threads()), and returns when all are done.
  virtual void run(std::int64_t pieces, void (*body)(void* context, std::int64_t piece, int thread) noexcept, void* context) noexcept = 0;
};

}  // namespace motet
