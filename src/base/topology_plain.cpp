// SPDX-License-Identifier: Apache-2.0
// Takes the place of topology_hwloc.cpp where hwloc is absent: the same facts from /sys/devices/system.
#include <algorithm>
#include <filesystem>
#include <string>

#include "base/system_files.h"
#include "base/thread_pool.h"
#include "base/topology.h"

namespace motet {
namespace {

using std::filesystem::path;

std::string word_in(const path& file) {
  const std::string text = read_text(file).value_or("");
  const auto words = split(text, " \t\n");
  return words.empty() ? std::string() : std::string(words.front());
}

/// "32K", "1M" or plain bytes.
std::int64_t size_of_text(std::string text) {
  if (text.empty()) return 0;
  const std::int64_t unit = text.back() == 'K' ? 1 << 10 : text.back() == 'M' ? 1 << 20 : text.back() == 'G' ? 1 << 30 : 1;
  if (unit > 1) text.pop_back();
  const std::int64_t count = integer_of(text).value_or(0);
  return count > 0 && count < (std::int64_t{1} << 32) ? count * unit : 0;
}

}  // namespace

Topology read_topology() {
  Topology result;
  const path system = "/sys/devices/system";
  const std::vector<int> allowed = allowed_processors();
  const path cpu = system / "cpu" / ("cpu" + std::to_string(allowed.front())) / "cache";
  for (int index = 0; index < 32; ++index) {
    const path folder = cpu / ("index" + std::to_string(index));
    const auto level = integer_of(read_text(folder / "level").value_or(""));
    if (!level) break;
    const std::string type = word_in(folder / "type");
    CacheLevel cache;
    cache.level = static_cast<int>(*level);
    cache.kind = type == "Data" ? "data" : type == "Instruction" ? "instruction" : "unified";
    cache.bytes = size_of_text(word_in(folder / "size"));
    cache.shared_by = std::max(1, static_cast<int>(list_of(read_text(folder / "shared_cpu_list").value_or("")).size()));
    result.caches.push_back(cache);
  }
  std::stable_sort(result.caches.begin(), result.caches.end(), [](const CacheLevel& a, const CacheLevel& b) {
    return a.level < b.level || (a.level == b.level && a.kind < b.kind);
  });
  for (const int id : list_of(read_text(system / "node" / "has_memory").value_or(""))) {
    const path folder = system / "node" / ("node" + std::to_string(id));
    const std::vector<int> processors = list_of(read_text(folder / "cpulist").value_or(""));
    NumaNode node;
    node.id = id;
    node.processors = static_cast<int>(processors.size());
    node.allowed_processors = static_cast<int>(std::count_if(
        processors.begin(), processors.end(), [&](int p) { return std::binary_search(allowed.begin(), allowed.end(), p); }));
    const std::string memory = read_text(folder / "meminfo").value_or("");
    const std::size_t total = memory.find("MemTotal:");
    if (total != std::string::npos) {
      const auto words = split(std::string_view(memory).substr(total + 9), " \t\n");
      const std::int64_t kib = words.empty() ? 0 : integer_of(words[0]).value_or(0);
      node.memory_bytes = kib < (std::int64_t{1} << 50) ? kib * 1024 : 0;
    }
    result.nodes.push_back(node);
  }
  return result;
}

}  // namespace motet
