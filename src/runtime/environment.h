// SPDX-License-Identifier: Apache-2.0
// How the facts of a machine become the Environment that plans depend on. Pure, so that tests can describe other machines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/cgroup.h"
#include "base/cpu_features.h"
#include "base/topology.h"
#include "motet/spec.h"

namespace motet {

/// Everything that is read from the system, before it is judged.
struct MachineReading {
  CpuFeatures cpu;
  int processors_online = 1, processors_in_affinity = 1;
  CgroupLimits cgroup;
  std::int64_t memory_total = 0, memory_available = 0;  ///< bytes, of the machine
  std::int64_t page_bytes = 4096;
  Topology topology;
  std::string transparent_huge_pages;  ///< "always", "madvise", "never" or "unknown"
  std::string forced_target;           ///< MOTET_TARGET, "" when unset
};
MachineReading read_machine();

/// `bf16_is_faster` is asked only when no table entry knows the processor and it has the bf16 dot.
/// Throws Error(not_supported) when forced_target names no target or one that is not usable.
Environment environment_of(const MachineReading& machine, bool (*bf16_is_faster)(const CpuFeatures&));

/// What this processor or build lacks to run a target, such as "lacks AVX-512 BF16"; "" when it can ("" names no target).
std::string missing_here(std::string_view target);

}  // namespace motet
