// SPDX-License-Identifier: Apache-2.0
#include "backends/backend.h"

namespace motet {

#define MOTET_BACKEND(name) extern const Backend backend_##name;
#include "backends/backends.inc"
#undef MOTET_BACKEND

const std::vector<const Backend*>& all_backends() {
  static const std::vector<const Backend*> list = {
#define MOTET_BACKEND(name) &backend_##name,
#include "backends/backends.inc"
#undef MOTET_BACKEND
  };
  return list;
}

const Backend* find_backend(std::string_view name) noexcept {
  for (const Backend* backend : all_backends()) {
    if (backend->traits.name == name) return backend;
  }
  return nullptr;
}

}  // namespace motet
