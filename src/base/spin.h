// SPDX-License-Identifier: Apache-2.0
// Waiting a little before sleeping.
#pragma once

#include <chrono>

namespace motet {

/// How long an idle thread or rank spins before it sleeps. Evidence: a futex wake costs tens of us, a decode step has three phases
/// of a few hundred us.
inline constexpr auto kSpin = std::chrono::microseconds(100);

/// Tells the processor that this thread spins.
[[gnu::always_inline]] inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

}  // namespace motet
