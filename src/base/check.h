// SPDX-License-Identifier: Apache-2.0
// Our own bugs end the program here with file, line and values. Never for mistakes of callers or files: those are Errors.
#pragma once

namespace motet {

/// Prints "motet: FILE:LINE: check failed: CONDITION: VALUES" on stderr and aborts. Allocates nothing.
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 4, 5)]] void abort_check(const char* file, int line,
                                                                                   const char* condition, const char* format,
                                                                                   ...) noexcept;

}  // namespace motet

/// MOTET_CHECK(condition) or MOTET_CHECK(condition, "rows %lld", rows): always evaluated, in every build.
#define MOTET_CHECK(condition, ...)                           \
  (__builtin_expect(static_cast<bool>(condition), 1) ? void() \
                                                     : ::motet::abort_check(__FILE__, __LINE__, #condition, " " __VA_ARGS__))

/// The same in debug builds; in release builds the condition is compiled but not evaluated.
#ifdef NDEBUG
#define MOTET_DCHECK(condition, ...) (true ? void() : MOTET_CHECK(condition, __VA_ARGS__))
#else
#define MOTET_DCHECK(condition, ...) MOTET_CHECK(condition, __VA_ARGS__)
#endif
