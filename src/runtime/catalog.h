// SPDX-License-Identifier: Apache-2.0
// The catalog of this build: facts of every format of formats.inc and traits of every backend of backends.inc.
#pragma once

#include "plan/catalog.h"

namespace motet {

/// Built once from all_formats() and all_backends(), in their order. Read-only, safe from any thread.
const Catalog& catalog();

}  // namespace motet
