// SPDX-License-Identifier: Apache-2.0
// The only file that includes hwloc.h; topology_plain.cpp takes its place where hwloc is absent.
#include <hwloc.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "base/thread_pool.h"
#include "base/topology.h"

namespace motet {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const noexcept { hwloc_topology_destroy(topology); }
};
using TopologyHolder = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

const char* kind_of(hwloc_obj_cache_type_t type) {
  return type == HWLOC_OBJ_CACHE_DATA ? "data" : type == HWLOC_OBJ_CACHE_INSTRUCTION ? "instruction" : "unified";
}

}  // namespace

Topology read_topology() {
  Topology result;
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return result;
  const TopologyHolder holder(raw);
  hwloc_topology_set_icache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(raw) != 0) return result;

  const std::vector<int> allowed = allowed_processors();
  const auto allowed_in = [&](hwloc_const_cpuset_t set) {
    return static_cast<int>(std::count_if(allowed.begin(), allowed.end(),
                                          [&](int p) { return hwloc_bitmap_isset(set, static_cast<unsigned>(p)) != 0; }));
  };
  const hwloc_obj_t unit = hwloc_get_pu_obj_by_os_index(raw, static_cast<unsigned>(allowed.front()));
  for (hwloc_obj_t object = unit; object != nullptr; object = object->parent) {
    if (hwloc_obj_type_is_cache(object->type) == 0) continue;
    CacheLevel cache;
    cache.level = static_cast<int>(object->attr->cache.depth);
    cache.kind = kind_of(object->attr->cache.type);
    cache.bytes = static_cast<std::int64_t>(object->attr->cache.size);
    cache.shared_by = hwloc_bitmap_weight(object->cpuset);
    result.caches.push_back(cache);
  }
  std::stable_sort(result.caches.begin(), result.caches.end(), [](const CacheLevel& a, const CacheLevel& b) {
    return a.level < b.level || (a.level == b.level && a.kind < b.kind);
  });
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    result.nodes.push_back({static_cast<int>(node->os_index), static_cast<std::int64_t>(node->attr->numanode.local_memory),
                            hwloc_bitmap_weight(node->cpuset), allowed_in(node->cpuset)});
  std::sort(result.nodes.begin(), result.nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return result;
}

}  // namespace motet
