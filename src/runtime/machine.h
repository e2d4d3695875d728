// SPDX-License-Identifier: Apache-2.0
// What a machine's facts mean for its user. Pure, so that tests can describe other machines.
#pragma once

#include <vector>

#include "motet/machine.h"
#include "runtime/environment.h"

namespace motet {

/// What a user may want to change about this machine, and how; most costly first.
std::vector<Finding> findings_of(const MachineReading& machine, const Environment& environment);

/// Memory that may still be taken: free or cheaply freed, of the machine or under the control group's limit, whichever is smaller.
std::int64_t available_memory(const MachineReading& machine) noexcept;

}  // namespace motet
