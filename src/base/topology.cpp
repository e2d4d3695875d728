// SPDX-License-Identifier: Apache-2.0
#include "base/topology.h"

#include <algorithm>

#include "base/text.h"

namespace motet {

std::int64_t last_level_cache(const Topology& topology) noexcept {
  std::int64_t bytes = 0;
  for (const CacheLevel& cache : topology.caches)
    if (cache.kind != "instruction") bytes = std::max(bytes, cache.bytes);
  return bytes;
}

void settle_lone_node(Topology& topology, std::int64_t memory_total) noexcept {
  if (topology.nodes.size() == 1) topology.nodes[0].memory_bytes = std::max(topology.nodes[0].memory_bytes, memory_total);
}

std::string text_of(const NumaNode& node) {
  std::string text = format_text("node %d: %d processor%s, %s", node.id, node.processors, node.processors == 1 ? "" : "s",
                                 node.memory_bytes > 0 ? bytes_text(node.memory_bytes).c_str() : "memory not known");
  if (node.allowed_processors != node.processors) text += format_text(" (%d allowed to this process)", node.allowed_processors);
  return text;
}

}  // namespace motet
