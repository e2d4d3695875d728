// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that kernels run in, whatever the caller's thread had set.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace motet {

/// While it lives, this thread rounds to nearest even, keeps subnormals (no flush-to-zero, no denormals-are-zero) and traps
/// nothing; then the thread's own state, sticky flags included, comes back. A new thread inherits its creator's state, so
/// pool threads need it as well.
class DefaultFpState {
 public:
  [[gnu::always_inline]] inline DefaultFpState() noexcept : saved_(read()) { write(kDefault); }
  [[gnu::always_inline]] inline ~DefaultFpState() { write(saved_); }
  DefaultFpState(const DefaultFpState&) = delete;
  DefaultFpState& operator=(const DefaultFpState&) = delete;

 private:
#if defined(__x86_64__)
  using State = unsigned;
  static constexpr State kDefault = 0x1F80;  // MXCSR after reset: all exceptions masked
  [[gnu::always_inline]] static inline State read() noexcept { return _mm_getcsr(); }
  [[gnu::always_inline]] static inline void write(State state) noexcept { _mm_setcsr(state); }
#elif defined(__aarch64__)
  using State = std::uint64_t;
  static constexpr State kDefault = 0;  // FPCR: round to nearest, FZ and FZ16 off, no traps
  [[gnu::always_inline]] static inline State read() noexcept {
    State state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  [[gnu::always_inline]] static inline void write(State state) noexcept { asm volatile("msr fpcr, %0" ::"r"(state)); }
#else
#error "the floating-point control register of this architecture is not known: add it here"
#endif
  State saved_;
};

}  // namespace motet
