// SPDX-License-Identifier: Apache-2.0
// Caches and memory nodes. Read by hwloc where the build has it, else from /sys; the same answers either way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motet {

struct CacheLevel {
  int level = 0;
  std::string kind;  ///< "data", "instruction" or "unified"
  std::int64_t bytes = 0;
  int shared_by = 1;  ///< processors
};

struct NumaNode {
  int id = 0;
  std::int64_t memory_bytes = 0;
  int processors = 0;
  int allowed_processors = 0;  ///< of this thread's affinity mask
};

/// Empty lists when the system does not tell.
struct Topology {
  std::vector<CacheLevel> caches;  ///< of one processor, nearest first
  std::vector<NumaNode> nodes;     ///< ascending id
};
Topology read_topology();

/// Bytes of the largest data or unified cache, 0 when not known.
std::int64_t last_level_cache(const Topology& topology) noexcept;

/// Gives a lone node all of `memory_total`. The kernel counts in a node what it has initialised: where it initialises memory on
/// demand (seen: 5 of 24 GiB on a virtual machine of one node), that is less than the node has, and only the machine's total is
/// right.
void settle_lone_node(Topology& topology, std::int64_t memory_total) noexcept;

/// One line per node: "node 0: 16 processors, 64 GiB".
std::string text_of(const NumaNode& node);

}  // namespace motet
