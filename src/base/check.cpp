// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace motet {

void abort_check(const char* file, int line, const char* condition, const char* format, ...) noexcept {
  char values[512];
  std::va_list list;
  va_start(list, format);
  std::vsnprintf(values, sizeof values, format, list);
  va_end(list);
  const bool has_values = values[0] != '\0' && values[1] != '\0';  // the macro puts one blank in front
  std::fprintf(stderr, "motet: %s:%d: check failed: %s%s%s\n", file, line, condition, has_values ? ":" : "",
               has_values ? values : "");
  std::abort();
}

}  // namespace motet
