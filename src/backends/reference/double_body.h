// SPDX-License-Identifier: Apache-2.0
// Expert bodies in double precision, one line per formula of ActivationKind.
#pragma once

#include "motet/spec.h"

namespace motet {

/// act(gate, up); `gate` is not read when the body has no gate. NaN in, NaN out.
double double_body(const Activation& activation, double gate, double up) noexcept;

}  // namespace motet
