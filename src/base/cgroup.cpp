// SPDX-License-Identifier: Apache-2.0
// Kernel documentation: admin-guide/cgroup-v2.rst (cpu.max, memory.max), scheduler/sched-bwc.rst (cpu.cfs_*), cgroup-v1/memory.rst,
// and proc(5) for cgroup and mountinfo.
#include "base/cgroup.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "base/system_files.h"
#include "base/text.h"

namespace motet {
namespace {

using std::filesystem::path;

/// One mounted hierarchy and the group of this process in it.
struct Hierarchy {
  bool version2 = false;
  std::vector<std::string> controllers;  // version 1
  std::string mount_point;
  std::string mount_root;  // the group that the mount point shows; "/" unless a container shows a part only
  std::string group;
};

/// mountinfo writes blanks, tabs, newlines and backslashes as three octal digits.
std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '3') {
      result.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
      i += 3;
    } else {
      result.push_back(text[i]);
    }
  }
  return result;
}

std::vector<std::string> words_of(std::string_view text, std::string_view separators) {
  std::vector<std::string> words;
  for (const std::string_view word : split(text, separators)) words.emplace_back(word);
  return words;
}
bool holds(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// Mounts of cgroup file systems: "ID PARENT MAJ:MIN ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE SUPER-OPTIONS".
std::vector<Hierarchy> read_mounts(const CgroupPlaces& places) {
  std::vector<Hierarchy> result;
  const std::string text = read_text(places.process / "mountinfo").value_or("");
  for (const std::string_view line : split(text, "\n")) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = split(line.substr(0, dash), " "), right = split(line.substr(dash + 3), " ");
    if (left.size() < 5 || right.empty() || (right[0] != "cgroup" && right[0] != "cgroup2")) continue;
    Hierarchy mount;
    mount.version2 = right[0] == "cgroup2";
    mount.controllers = right.size() < 3 ? std::vector<std::string>() : words_of(right[2], ",");
    mount.mount_root = unescaped(left[3]);
    mount.mount_point = unescaped(left[4]);
    result.push_back(mount);
  }
  return result;
}

/// Fills in the group of this process from lines "ID:CONTROLLERS:GROUP"; version 2 has no controllers.
std::vector<Hierarchy> read_hierarchies(const CgroupPlaces& places) {
  std::vector<Hierarchy> result;
  const std::string text = read_text(places.process / "cgroup").value_or("");
  const std::vector<Hierarchy> mounts = read_mounts(places);
  for (const std::string_view line : split(text, "\n")) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::vector<std::string> controllers = words_of(line.substr(first + 1, second - first - 1), ",");
    for (const Hierarchy& mount : mounts) {
      const bool same = controllers.empty() ? mount.version2 : !mount.version2 && holds(mount.controllers, controllers.front());
      if (!same) continue;
      result.push_back(mount);
      result.back().group = std::string(line.substr(second + 1));
      break;
    }
  }
  return result;
}

/// Group of the process below the mount point: "/docker/x/y" seen through a mount of "/docker/x" is "/y". A group outside of
/// what is mounted (the mount shows another part) counts as the mount point itself: the nearest that can be read.
std::string visible_group(const Hierarchy& hierarchy) {
  const std::string& root = hierarchy.mount_root;
  if (root == "/") return hierarchy.group.find("..") == std::string::npos ? hierarchy.group : "/";
  if (hierarchy.group == root) return "/";
  return hierarchy.group.starts_with(root + "/") ? hierarchy.group.substr(root.size()) : "/";
}

/// Calls visit(folder, group) for the process's group, its parent, ... up to the mount point.
template <class Visit>
void walk_up(const CgroupPlaces& places, const Hierarchy& hierarchy, const Visit& visit) {
  const path point = places.root / path(hierarchy.mount_point).relative_path();
  path group = path(visible_group(hierarchy)).lexically_normal();
  for (int depth = 0; depth < 256; ++depth) {
    visit(point / group.relative_path(), group.empty() ? std::string("/") : group.string());
    if (!group.has_relative_path()) return;
    group = group.parent_path();
  }
}

std::optional<double> read_quota(const path& folder, bool version2) {
  std::optional<std::int64_t> quota, period;
  if (version2) {
    const std::string text = read_text(folder / "cpu.max").value_or("");
    const auto words = split(text, " \n");
    if (words.empty()) return std::nullopt;
    quota = integer_of(words[0]);  // "max" is none
    period = words.size() > 1 ? integer_of(words[1]) : 100000;
  } else {
    quota = integer_of(read_text(folder / "cpu.cfs_quota_us").value_or(""));  // -1 is none
    period = integer_of(read_text(folder / "cpu.cfs_period_us").value_or(""));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<std::int64_t> read_memory_limit(const path& folder, bool version2) {
  const auto limit = integer_of(read_text(folder / (version2 ? "memory.max" : "memory.limit_in_bytes")).value_or(""));
  // Version 1 writes "none" as the largest multiple of the page that fits.
  if (!limit || *limit < 0 || *limit >= (std::int64_t{1} << 60)) return std::nullopt;
  return limit;
}

/// Used bytes without the inactive part of the page cache, which the kernel drops before it refuses anything.
std::int64_t read_memory_used(const path& folder, bool version2) {
  const std::int64_t used =
      integer_of(read_text(folder / (version2 ? "memory.current" : "memory.usage_in_bytes")).value_or("")).value_or(0);
  const std::string statistics = read_text(folder / "memory.stat").value_or("");
  std::int64_t inactive = 0;
  for (const std::string_view line : split(statistics, "\n")) {
    const auto words = split(line, " ");
    if (words.size() == 2 && words[0] == (version2 ? "inactive_file" : "total_inactive_file"))
      inactive = integer_of(words[1]).value_or(0);
  }
  return std::max<std::int64_t>(0, used - inactive);
}

}  // namespace

CgroupLimits read_cgroup_limits(const CgroupPlaces& places) {
  CgroupLimits limits;
  for (const Hierarchy& hierarchy : read_hierarchies(places)) {
    const bool v2 = hierarchy.version2;
    const bool cpu = v2 || holds(hierarchy.controllers, "cpu"), memory = v2 || holds(hierarchy.controllers, "memory");
    if (!cpu && !memory) continue;
    walk_up(places, hierarchy, [&](const path& folder, const std::string& group) {
      const auto quota = cpu ? read_quota(folder, v2) : std::nullopt;
      if (quota && (limits.cpu_quota == 0 || *quota < limits.cpu_quota)) {
        limits.cpu_quota = *quota;
        limits.cpu_group = group;
      }
      const auto limit = memory ? read_memory_limit(folder, v2) : std::nullopt;
      if (limit && (limits.memory_group.empty() || *limit < limits.memory_limit)) {
        limits.memory_limit = std::max<std::int64_t>(1, *limit);  // 0 means none in CgroupLimits
        limits.memory_group = group;
        limits.memory_used = read_memory_used(folder, v2);
      }
    });
  }
  return limits;
}

ThreadAllowance allowed_threads(int processors_online, int processors_in_affinity, const CgroupLimits& limits) {
  ThreadAllowance allowance;
  const int affinity = std::max(1, processors_in_affinity);
  allowance.threads = affinity;
  std::string cause = affinity < processors_online ? "affinity mask" : "all of them";
  if (limits.cpu_quota > 0 && limits.cpu_quota < affinity) {
    allowance.threads = std::max(1, static_cast<int>(std::floor(limits.cpu_quota)));
    cause = format_text("cgroup quota %.6g at ", limits.cpu_quota) + limits.cpu_group;
    if (affinity < processors_online) cause += format_text(", affinity mask of %d", affinity);
  }
  allowance.reason =
      format_text("%d of %d processor%s: ", allowance.threads, processors_online, processors_online == 1 ? "" : "s") + cause;
  return allowance;
}

}  // namespace motet
