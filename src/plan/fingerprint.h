// SPDX-License-Identifier: Apache-2.0
// The fingerprint: FNV-1a with 128 bits over a canonical text of the fields that must be equal on all ranks (L10).
// It detects disagreement between honest ranks; it is not a cryptographic hash.
#pragma once

#include <string>
#include <string_view>

#include "motet/plan.h"

namespace motet {

/// 32 hexadecimal digits of FNV-1a/128 (Fowler, Noll, Vo; draft-eastlake-fnv): hash = (hash xor byte) * (2^88 + 2^8 + 0x3b).
std::string fnv1a_128(std::string_view bytes);

/// Over visit_agreed_fields(plan): each value as "name=value;", lists with their length, structs in braces.
std::string fingerprint_of(const Plan& plan);

}  // namespace motet
