// SPDX-License-Identifier: Apache-2.0
#include "runtime/machine.h"
#include "runtime/check_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "motet/error.h"

namespace motet {
namespace {

bool never_asked(const CpuFeatures&) {
  ADD_FAILURE() << "measured although the answer was known";
  return false;
}
bool faster(const CpuFeatures&) { return true; }
bool slower(const CpuFeatures&) { return false; }

/// A machine with every instruction set but tiles.
MachineReading machine_with(const std::string& vendor, int family, int model) {
  MachineReading machine;
  CpuFeatures& cpu = machine.cpu;
  cpu.avx2 = cpu.fma = cpu.f16c = cpu.avx512f = cpu.avx512bw = cpu.avx512dq = cpu.avx512vl = true;
  cpu.avx512vnni = cpu.avx512vbmi = cpu.avx512bf16 = true;
  cpu.vendor = vendor;
  cpu.family = family;
  cpu.model = model;
  cpu.processor = vendor + "-" + std::to_string(family) + "-" + std::to_string(model);
  machine.processors_online = machine.processors_in_affinity = 64;
  machine.memory_total = std::int64_t{24} << 30;
  machine.memory_available = std::int64_t{20} << 30;
  machine.transparent_huge_pages = "madvise";
  return machine;
}
MachineReading with_tiles(MachineReading machine) {
  machine.cpu.amx_tile = machine.cpu.amx_int8 = machine.cpu.amx_bf16 = true;
  return machine;
}
/// The first that the default level may take.
std::string first_arithmetic(const MachineReading& machine, bool (*measured)(const CpuFeatures&) = never_asked) {
  const std::vector<std::string> ranking = environment_of(machine, measured).arithmetic_ranking;
  return *std::find_if(ranking.begin(), ranking.end(), [](const std::string& name) { return name != "int8_dot"; });
}

TEST(Environment, RanksArithmeticsByMicroarchitectureNotByFlag) {
  EXPECT_EQ(first_arithmetic(machine_with("amd", 26, 2)), "bf16_dot");
  EXPECT_EQ(first_arithmetic(machine_with("amd", 25, 0x11)), "bf16_dot");
  EXPECT_EQ(first_arithmetic(machine_with("intel", 6, 207)), "int16_dot");
  EXPECT_EQ(first_arithmetic(machine_with("intel", 6, 143)), "int16_dot");
}

TEST(Environment, MeasuresOnlyProcessorsItDoesNotKnow) {
  EXPECT_EQ(first_arithmetic(machine_with("intel", 6, 250), faster), "bf16_dot");
  EXPECT_EQ(first_arithmetic(machine_with("intel", 6, 250), slower), "int16_dot");
  MachineReading machine = machine_with("intel", 6, 250);
  machine.cpu.avx512bf16 = false;
  EXPECT_EQ(first_arithmetic(machine), "int16_dot");
}

TEST(Environment, TargetsNameWhatIsMissing) {
  MachineReading machine = with_tiles(machine_with("intel", 6, 207));
  const Environment all = environment_of(machine, never_asked);
  ASSERT_EQ(all.targets.size(), 5u);
  for (const TargetFacts& target : all.targets)
    EXPECT_TRUE(target.compiled && target.usable) << target.name << ": " << target.reason;
  EXPECT_EQ(all.targets.front().name, "amx");
  EXPECT_EQ(all.arithmetic_ranking.front(), "bf16_tile");
  machine.cpu.amx_tile = machine.cpu.amx_int8 = machine.cpu.amx_bf16 = false;
  EXPECT_EQ(environment_of(machine, never_asked).targets.front().name, "avx512_bf16");
  machine.cpu.avx512vbmi = machine.cpu.avx512bf16 = false;
  const Environment some = environment_of(machine, never_asked);
  EXPECT_EQ(some.targets.front().name, "avx512_vnni");
  const auto missing =
      std::find_if(some.targets.begin(), some.targets.end(), [](const TargetFacts& t) { return t.name == "avx512_bf16"; });
  EXPECT_EQ(missing->reason, "processor or operating system lacks AVX-512 BF16, AVX-512 VBMI");
  machine.cpu = CpuFeatures{};
  EXPECT_EQ(environment_of(machine, never_asked).targets.front().name, "generic");
}

TEST(Environment, TilesThatLinuxRefusesAreNamed) {
  MachineReading machine = machine_with("intel", 6, 207);
  machine.cpu.tiles_refused = "Linux does not let this process use AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM: Operation not permitted)";
  const Environment environment = environment_of(machine, never_asked);
  EXPECT_EQ(environment.targets.front().name, "avx512_bf16");
  EXPECT_EQ(environment.targets.back().name, "amx");
  EXPECT_EQ(environment.targets.back().reason, machine.cpu.tiles_refused);
}

TEST(L11, AForcedTargetIsTakenOrRefusedByName) {
  MachineReading machine = machine_with("amd", 26, 2);
  machine.forced_target = "avx2";
  const Environment forced = environment_of(machine, never_asked);
  EXPECT_EQ(forced.targets.front().name, "avx2");
  EXPECT_EQ(forced.targets.size(), 5u);
  machine.forced_target.clear();
  EXPECT_EQ(forced.arithmetic_ranking, environment_of(machine, never_asked).arithmetic_ranking)
      << "the processor's, not the target's";
  const auto refusal = [&](const std::string& name) {
    machine.forced_target = name;
    try {
      environment_of(machine, never_asked);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
      return std::string(error.what());
    }
    return std::string("taken");
  };
  EXPECT_NE(refusal("avx1024").find("names no target of this build; use one of avx512_bf16, avx512_vnni, avx2, generic"),
            std::string::npos)
      << refusal("avx1024");
  machine.cpu.avx512bf16 = false;
  EXPECT_NE(refusal("avx512_bf16").find("lacks AVX-512 BF16"), std::string::npos);
  EXPECT_NE(refusal("avx512_bf16").find("use one of avx512_vnni, avx2, generic"), std::string::npos);
}

TEST(L11, AForcedTargetDoesNotTakeTheArithmeticFromAWishedOne) {
  MachineReading machine = machine_with("amd", 26, 2);
  machine.forced_target = "avx2";
  const Environment environment = environment_of(machine, never_asked);
  const auto arithmetic = [&](const char* target) {
    return plan_way(check_shape("intermediate-704"), {.backend = "cpu", .target = target, .arithmetic = Arithmetic::bf16}, 2,
                    environment)
        .value()
        .recipe.arithmetic;
  };
  EXPECT_EQ(arithmetic("avx512_bf16"), "bf16_dot");
  EXPECT_EQ(arithmetic("avx2"), "f32") << "avx2 has no bf16 dot";
  EXPECT_EQ(arithmetic(""), "f32");
}

TEST(Environment, MemoryAndThreadsAreTheSmallerOfMachineAndControlGroup) {
  MachineReading machine = machine_with("amd", 26, 2);
  machine.cgroup.memory_limit = std::int64_t{8} << 30;
  machine.cgroup.memory_used = std::int64_t{3} << 30;
  machine.cgroup.memory_group = "/box";
  machine.cgroup.cpu_quota = 2.5;
  machine.cgroup.cpu_group = "/box";
  const Environment environment = environment_of(machine, never_asked);
  EXPECT_EQ(environment.memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(environment.threads, 2);
  EXPECT_EQ(environment.threads_reason, "2 of 64 processors: cgroup quota 2.5 at /box");
  EXPECT_EQ(available_memory(machine), std::int64_t{5} << 30);
  machine.cgroup.memory_limit = std::int64_t{100} << 30;
  EXPECT_EQ(environment_of(machine, never_asked).memory_bytes, std::int64_t{24} << 30);
}

TEST(Environment, ProbesTheSameAnswerTwice) {
  const Environment first = Environment::probe();
  EXPECT_EQ(first, Environment::probe());
  EXPECT_FALSE(first.version.empty());
  EXPECT_GE(first.threads, 1);
  EXPECT_GT(first.memory_bytes, 0);
  EXPECT_TRUE(first.targets.front().usable);
}

TEST(Environment, HonoursTheVariable) {
  setenv("MOTET_TARGET", "generic", 1);
  EXPECT_EQ(Environment::probe().targets.front().name, "generic");
  setenv("MOTET_TARGET", "no such", 1);
  EXPECT_THROW(Environment::probe(), Error);
  unsetenv("MOTET_TARGET");
}

TEST(Findings, EachHasARemedyAndAGoodMachineHasNone) {
  MachineReading machine = with_tiles(machine_with("intel", 6, 207));
  EXPECT_TRUE(findings_of(machine, environment_of(machine, never_asked)).empty());
  machine.cpu.avx512bf16 = false;
  machine.transparent_huge_pages = "never";
  machine.processors_in_affinity = 32;
  machine.cgroup.cpu_quota = 4;
  machine.cgroup.memory_limit = std::int64_t{1} << 30;
  machine.topology.nodes = {{0, 1, 32, 32}, {1, 1, 32, 0}};
  const auto findings = findings_of(machine, environment_of(machine, never_asked));
  EXPECT_EQ(findings.size(), 7u);  // two targets: tiles need the bf16 dot too
  for (const Finding& finding : findings) EXPECT_FALSE(finding.what.empty() || finding.remedy.empty()) << finding.what;
  for (const char* word :
       {"avx512_bf16", "huge pages", "affinity mask allows", "allows 4 processors", "limits memory", "memory node 1"})
    EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [&](const Finding& f) {
      return f.what.find(word) != std::string::npos;
    })) << word;
}

TEST(MachineFacts, DescribeThisMachine) {
  const MachineFacts facts = machine_facts();
  EXPECT_GE(facts.processors_online, facts.processors_in_affinity);
  EXPECT_GT(facts.memory_available, 0);
  EXPECT_LE(facts.memory_available, facts.memory_total);
  EXPECT_FALSE(facts.model_name.empty());
}

TEST(MeasuredRates, HoldWhatWasAskedForAndNoMore) {
  RateWishes wishes;
  wishes.bandwidth = false;
  wishes.budget_seconds = 0.05;
  const MeasuredRates compute = measure_rates(wishes);
  EXPECT_GT(compute.f32_flops, 0);
  EXPECT_EQ(compute.read_bytes_per_second, 0);
  wishes.bandwidth = true;
  wishes.compute = false;
  const auto probe = RateProbe::create(1);
  MeasuredRates bandwidth;
  for (int i = 0; i < 1000 && bandwidth.read_bytes_per_second == 0; ++i)
    bandwidth = probe->measure(wishes);  // until enough is resident
  EXPECT_GT(bandwidth.read_bytes_per_second, 0);
  EXPECT_EQ(bandwidth.f32_flops, 0);
  wishes.threads = 0;
  EXPECT_THROW(measure_rates(wishes), Error);
}

}  // namespace
}  // namespace motet
