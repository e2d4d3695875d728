// SPDX-License-Identifier: Apache-2.0
// Fake trees for control groups, and the facts that this machine must have.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/cgroup.h"
#include "base/system_files.h"
#include "base/thread_pool.h"
#include "base/topology.h"

namespace motet {
namespace {

using std::filesystem::path;

constexpr const char* kMountV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
constexpr const char* kMountV1 =
    "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";

class FakeCgroups : public testing::Test {
 protected:
  FakeCgroups() : root_(std::filesystem::temp_directory_path() / ("motet_cgroup_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(root_);
  }
  ~FakeCgroups() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    const path target = root_ / file;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream(target) << text;
  }
  void process(const std::string& cgroup, const std::string& mountinfo) {
    write("proc/cgroup", cgroup);
    write("proc/mountinfo", "23 1 0:21 / / rw - ext4 /dev/vda rw\n" + mountinfo);
  }
  CgroupLimits read() const { return read_cgroup_limits({root_ / "proc", root_}); }
  path root_;
};

TEST_F(FakeCgroups, Version2TakesTheSmallestLimitOnThePathToTheRoot) {
  process("0::/a/b/c\n", kMountV2);
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.max", "1073741824\n");
  write("sys/fs/cgroup/a/b/memory.current", "600000000\n");
  write("sys/fs/cgroup/a/b/memory.stat", "anon 5\ninactive_file 100000000\n");
  write("sys/fs/cgroup/a/b/c/memory.max", "4294967296\n");
  const CgroupLimits limits = read();
  EXPECT_EQ(limits.cpu_quota, 1.5);
  EXPECT_EQ(limits.cpu_group, "/a");
  EXPECT_EQ(limits.memory_limit, 1073741824);
  EXPECT_EQ(limits.memory_group, "/a/b");
  EXPECT_EQ(limits.memory_used, 500000000);
}

TEST_F(FakeCgroups, Version2LimitAtTheMountPointItselfCounts) {
  process("0::/\n", kMountV2);  // what a container with its own cgroup namespace sees
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(read().cpu_quota, 0.5);
  EXPECT_EQ(read().cpu_group, "/");
  EXPECT_EQ(read().memory_limit, 0);
}

TEST_F(FakeCgroups, Version1ReadsEachControllersOwnHierarchy) {
  process("3:cpu,cpuacct:/jobs/one\n2:memory:/other\n1:name=systemd:/x\n0::/\n", kMountV1);
  write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/other/memory.limit_in_bytes", "2147483648\n");
  const CgroupLimits limits = read();
  EXPECT_EQ(limits.cpu_quota, 2.5);
  EXPECT_EQ(limits.cpu_group, "/jobs");
  EXPECT_EQ(limits.memory_limit, 2147483648);
}

TEST_F(FakeCgroups, AMountThatShowsAPartOfTheTreeIsFollowed) {
  process("3:cpu,cpuacct:/docker/abc/inner\n",
          "31 30 0:27 /docker/abc /sys/fs/cgroup/cpu\\040x rw - cgroup cgroup rw,cpu,cpuacct\n");
  write("sys/fs/cgroup/cpu x/cpu.cfs_quota_us", "300000\n");
  write("sys/fs/cgroup/cpu x/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu x/inner/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu x/inner/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(read().cpu_quota, 2);
  EXPECT_EQ(read().cpu_group, "/inner");
}

TEST_F(FakeCgroups, NothingReadableMeansNoLimit) {
  EXPECT_EQ(read().cpu_quota, 0);
  process("garbage\n0::/gone/../../etc\n:::\n", std::string(kMountV2) + "short line\n - \n");
  write("sys/fs/cgroup/cpu.max", "what ever\n");
  write("sys/fs/cgroup/memory.max", "99999999999999999999999\n");
  EXPECT_EQ(read().cpu_quota, 0);
  EXPECT_EQ(read().memory_limit, 0);
}

TEST(AllowedThreads, FollowAffinityAndQuotaAndSayWhy) {
  const auto with = [](double quota) {
    CgroupLimits limits;
    limits.cpu_quota = quota;
    limits.cpu_group = "/foo";
    return limits;
  };
  EXPECT_EQ(allowed_threads(64, 64, with(2.5)).threads, 2);
  EXPECT_EQ(allowed_threads(64, 64, with(2.5)).reason, "2 of 64 processors: cgroup quota 2.5 at /foo");
  EXPECT_EQ(allowed_threads(64, 64, with(0.5)).threads, 1);
  EXPECT_EQ(allowed_threads(64, 64, with(1.5)).threads, 1);
  EXPECT_EQ(allowed_threads(64, 3, with(8)).threads, 3);
  EXPECT_EQ(allowed_threads(64, 3, with(8)).reason, "3 of 64 processors: affinity mask");
  EXPECT_EQ(allowed_threads(64, 3, with(2)).reason, "2 of 64 processors: cgroup quota 2 at /foo, affinity mask of 3");
  EXPECT_EQ(allowed_threads(2, 2, {}).reason, "2 of 2 processors: all of them");
  EXPECT_EQ(allowed_threads(1, 0, {}).threads, 1);
}

TEST(SystemFiles, ListsAndIntegers) {
  EXPECT_EQ(list_of("0-2,5,7-8\n"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  EXPECT_TRUE(list_of("x,3-1,-4,0-99999999999\n").empty());
  EXPECT_EQ(integer_of(" 12\n"), 12);
  EXPECT_EQ(integer_of("12 13"), std::nullopt);
  EXPECT_EQ(integer_of("12x"), std::nullopt);
  EXPECT_EQ(read_text("/nonexistent/file"), std::nullopt);
}

TEST(Topology, DescribesThisMachine) {
  const Topology topology = read_topology();
  int allowed = 0;
  for (const NumaNode& node : topology.nodes) {
    EXPECT_GE(node.processors, node.allowed_processors);
    allowed += node.allowed_processors;
  }
  EXPECT_EQ(allowed, topology.nodes.empty() ? 0 : static_cast<int>(allowed_processors().size()));
  for (std::size_t i = 0; i < topology.caches.size(); ++i) {
    EXPECT_GT(topology.caches[i].bytes, 0);
    EXPECT_GE(topology.caches[i].shared_by, 1);
    EXPECT_GE(topology.caches[i].level, i > 0 ? topology.caches[i - 1].level : 1);
  }
  EXPECT_GE(last_level_cache(topology), topology.caches.empty() ? 0 : topology.caches.front().bytes);
  EXPECT_EQ(text_of({1, std::int64_t{64} << 30, 16, 8}), "node 1: 16 processors, 64 GiB (8 allowed to this process)");
}

TEST(Topology, ALoneNodeHasTheMachinesMemoryAndSeveralKeepTheirs) {
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  Topology lone{{}, {{0, 5 * kGib, 2, 2}}}, two{{}, {{0, 5 * kGib, 2, 2}, {1, 6 * kGib, 2, 2}}};
  settle_lone_node(lone, 24 * kGib);
  EXPECT_EQ(lone.nodes[0].memory_bytes, 24 * kGib) << "what the kernel has not initialised yet is the node's too";
  settle_lone_node(two, 24 * kGib);
  EXPECT_EQ(two.nodes[0].memory_bytes, 5 * kGib);
  Topology unknown;
  settle_lone_node(unknown, 24 * kGib);
  EXPECT_TRUE(unknown.nodes.empty());
}

}  // namespace
}  // namespace motet
