// SPDX-License-Identifier: Apache-2.0
// Limits that control groups put on this process: versions 1 and 2, side by side or nested. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace motet {

/// Where to look; tests point both to a fake tree.
struct CgroupPlaces {
  std::filesystem::path process = "/proc/self";  ///< holds `cgroup` and `mountinfo`
  std::filesystem::path root = "/";              ///< put before every mount point that mountinfo names
};

/// The smallest limit on the path from this process's group up to the root of each hierarchy.
struct CgroupLimits {
  double cpu_quota = 0;           ///< processors, fractional; 0 = none
  std::string cpu_group;          ///< group that sets it, such as "/foo"
  std::int64_t memory_limit = 0;  ///< bytes; 0 = none
  std::string memory_group;
  std::int64_t memory_used = 0;  ///< bytes that count against memory_limit and cannot be dropped at once
};
CgroupLimits read_cgroup_limits(const CgroupPlaces& places = {});

/// Threads worth starting: max(1, min(affinity, floor(quota))).
struct ThreadAllowance {
  int threads = 1;
  std::string reason;  ///< "2 of 64 processors: cgroup quota 2.5 at /foo"
};
ThreadAllowance allowed_threads(int processors_online, int processors_in_affinity, const CgroupLimits& limits);

}  // namespace motet
