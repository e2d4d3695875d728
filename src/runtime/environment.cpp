// SPDX-License-Identifier: Apache-2.0
#include "runtime/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/system_files.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "kernels/probe.h"
#include "motet/error.h"

namespace motet {
namespace {

struct TargetRow {
  std::string_view name, flags, needs;
};
constexpr TargetRow kTargets[] = {
#define MOTET_TARGET_LINE(name, flags, needs) {#name, flags, needs},
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
};

/// Arithmetics by microarchitecture, fastest first. Flags do not tell: some processors run the bf16 dot at a quarter of the fp32
/// FMA's issue rate.
struct Ranking {
  std::vector<std::string> many, few;
};
// Many tokens: operations per second, less what each arithmetic spends beside the dot (a scale per 32 in the integer ones). Few
// tokens: instructions per byte of weights, as reading is the limit.
const Ranking kFullRateBf16 = {{"int8_dot", "bf16_dot", "int16_dot", "f32"}, {"bf16_dot", "int8_dot", "int16_dot", "f32"}};
const Ranking kSlowBf16 = {{"int8_dot", "int16_dot", "f32", "bf16_dot"}, {"int8_dot", "int16_dot", "f32", "bf16_dot"}};
const Ranking kTiles = {{"bf16_tile", "bf16x2_tile", "int8_dot", "int16_dot", "f32", "bf16_dot"},
                        {"int8_dot", "int16_dot", "f32", "bf16_dot"}};

struct RankingRow {
  std::string_view vendor;
  int family, first_model, last_model;
  const Ranking& ranking;
  std::string_view evidence;
};
const RankingRow kRankings[] = {
    {"amd", 26, 0x00, 0x4F, kFullRateBf16, "AMD Zen 5: bf16 dot 856, fp32 FMA 432 GFLOP/s on two cores (measured 2026-11-30)"},
    {"amd", 26, 0x60, 0x7F, kFullRateBf16,
     "AMD Zen 5: the bf16 dot issues as often as the fp32 FMA and does twice the work (measured on a server part)"},
    {"amd", 25, 0x10, 0x1F, kFullRateBf16,
     "AMD Zen 4: the bf16 dot issues as often as the fp32 FMA and does twice the work (instruction tables, not measured)"},
    {"amd", 25, 0x60, 0x7F, kFullRateBf16,
     "AMD Zen 4: the bf16 dot issues as often as the fp32 FMA and does twice the work (instruction tables, not measured)"},
    {"amd", 25, 0xA0, 0xAF, kFullRateBf16,
     "AMD Zen 4c: the bf16 dot issues as often as the fp32 FMA and does twice the work (instruction tables, not measured)"},
    {"intel", 6, 143, 143, kSlowBf16,
     "Intel Sapphire Rapids: same core as Emerald Rapids, whose bf16 dot reaches half of its fp32 FMA rate"},
    {"intel", 6, 207, 207, kSlowBf16,
     "Intel Emerald Rapids: bf16 dot 171, fp32 FMA 340, int16 dot 705 GFLOP/s on two cores (measured 2026-11-30)"},
};

std::string missing_instructions(const TargetRow& target, const CpuFeatures& cpu) {
  std::string missing;
  for (const std::string_view flag : split(target.flags, ";"))
    if (!has_instructions(cpu, flag)) missing += (missing.empty() ? "" : ", ") + std::string(instructions_name(flag));
  return missing;
}

std::vector<TargetFacts> targets_of(const CpuFeatures& cpu) {
#if defined(__x86_64__)
  constexpr bool kWide = true;
#else
  constexpr bool kWide = false;
#endif
  std::vector<TargetFacts> result;
  for (const TargetRow& row : kTargets) {
    TargetFacts facts;
    facts.name = row.name;
    facts.compiled = kWide || row.flags.empty();
    const std::string missing = missing_instructions(row, cpu);
    facts.usable = facts.compiled && missing.empty();
    facts.reason = !facts.compiled                                          ? "not compiled: needs " + std::string(row.needs)
                   : facts.usable                                           ? "needs " + std::string(row.needs)
                   : !cpu.tiles_refused.empty() && missing.find("AMX") == 0 ? cpu.tiles_refused
                                                                            : "processor or operating system lacks " + missing;
    result.push_back(facts);
  }
  return result;
}

std::string names_of(const std::vector<TargetFacts>& targets, bool usable_only) {
  std::string names;
  for (const TargetFacts& target : targets)
    if (target.usable || !usable_only) names += (names.empty() ? "" : ", ") + target.name;
  return names;
}

/// Usable targets first in their order, then the rest; the forced one before all.
void order_targets(std::vector<TargetFacts>& targets, const std::string& forced) {
  std::stable_partition(targets.begin(), targets.end(), [](const TargetFacts& target) { return target.usable; });
  if (forced.empty()) return;
  const auto found = std::find_if(targets.begin(), targets.end(), [&](const TargetFacts& target) { return target.name == forced; });
  if (found == targets.end())
    throw Error(ErrorCode::not_supported, "MOTET_TARGET=" + quoted(forced) + " names no target of this build; use one of " +
                                              names_of(targets, true) + " (all: " + names_of(targets, false) + ") or unset it");
  if (!found->usable)
    throw Error(ErrorCode::not_supported, "MOTET_TARGET=" + quoted(forced) + " cannot be used here (" + found->reason +
                                              "); use one of " + names_of(targets, true) + " or unset it");
  found->reason += "; first because MOTET_TARGET names it";
  std::rotate(targets.begin(), found, found + 1);
}

bool has_flag(std::string_view target, std::string_view flag) {
  for (const TargetRow& row : kTargets)
    if (row.name == target) return row.flags.find(flag) != std::string_view::npos;
  return false;
}
bool has_bf16_dot(std::string_view target) { return has_flag(target, "-mavx512bf16"); }
bool has_bf16_tile(std::string_view target) { return has_flag(target, "-mamx-bf16"); }

bool any_usable(const Environment& environment, bool (*has)(std::string_view)) {
  return std::any_of(environment.targets.begin(), environment.targets.end(),
                     [has](const TargetFacts& target) { return target.usable && has(target.name); });
}

/// By the processor alone, whatever target is forced or wished for: a backend passes over an arithmetic that its target lacks.
void rank_arithmetics(const CpuFeatures& cpu, bool (*bf16_is_faster)(const CpuFeatures&), Environment& environment) {
  const auto take = [&](const Ranking& ranking, std::string evidence) {
    environment.arithmetic_ranking = ranking.many;
    environment.few_ranking = ranking.few;
    environment.ranking_evidence = std::move(evidence);
  };
  if (any_usable(environment, has_bf16_tile))
    return take(kTiles,
                "processors with a tile unit: bf16 tile 7520, int16 dot 970, fp32 FMA 485 GFLOP/s on two cores of a Granite Rapids "
                "(measured "
                "2026-12-01)");
  if (!any_usable(environment, has_bf16_dot)) return take(kSlowBf16, "this processor has no bf16 dot");
  const auto row = std::find_if(std::begin(kRankings), std::end(kRankings), [&](const RankingRow& r) {
    return r.vendor == cpu.vendor && r.family == cpu.family && r.first_model <= cpu.model && cpu.model <= r.last_model;
  });
  if (row != std::end(kRankings)) return take(row->ranking, std::string(row->evidence));
  const bool faster = bf16_is_faster(cpu);
  take(faster ? kFullRateBf16 : kSlowBf16, std::string("not in the table; measured here: the bf16 dot is ") +
                                               (faster ? "" : "not ") + "more than a fifth faster than the fp32 FMA");
}

std::int64_t kib_in(std::string_view meminfo, std::string_view key) {
  for (const std::string_view line : split(meminfo, "\n")) {
    const auto words = split(line, ": \t");
    if (words.size() >= 2 && words[0] == key)
      return std::clamp<std::int64_t>(integer_of(words[1]).value_or(0), 0, std::int64_t{1} << 50);
  }
  return 0;
}

/// "always [madvise] never" -> "madvise".
std::string bracketed_word(std::string_view text) {
  const std::size_t open = text.find('['), close = text.find(']');
  return open == std::string_view::npos || close == std::string_view::npos || close < open
             ? "unknown"
             : std::string(text.substr(open + 1, close - open - 1));
}

}  // namespace

MachineReading read_machine() {
  MachineReading machine;
  machine.cpu = this_cpu();
  machine.processors_in_affinity = static_cast<int>(allowed_processors().size());
  machine.processors_online = std::max(machine.processors_in_affinity, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  machine.cgroup = read_cgroup_limits();
  machine.page_bytes = sysconf(_SC_PAGESIZE);
  machine.memory_total = sysconf(_SC_PHYS_PAGES) * machine.page_bytes;
  machine.memory_available = kib_in(read_text("/proc/meminfo").value_or(""), "MemAvailable") * 1024;
  machine.topology = read_topology();
  settle_lone_node(machine.topology, machine.memory_total);
  machine.transparent_huge_pages = bracketed_word(read_text("/sys/kernel/mm/transparent_hugepage/enabled").value_or(""));
  const char* const forced = std::getenv("MOTET_TARGET");
  machine.forced_target = forced == nullptr ? "" : forced;
  return machine;
}

Environment environment_of(const MachineReading& machine, bool (*bf16_is_faster)(const CpuFeatures&)) {
  Environment environment;
  environment.version = MOTET_VERSION;
  environment.processor = machine.cpu.processor;
  environment.targets = targets_of(machine.cpu);
  order_targets(environment.targets, machine.forced_target);
  rank_arithmetics(machine.cpu, bf16_is_faster, environment);
  const ThreadAllowance allowance = allowed_threads(machine.processors_online, machine.processors_in_affinity, machine.cgroup);
  environment.threads = allowance.threads;
  environment.threads_reason = allowance.reason;
  const std::int64_t limit = machine.cgroup.memory_limit;
  environment.memory_bytes = limit > 0 ? std::min(limit, machine.memory_total) : machine.memory_total;
  environment.page_bytes = machine.page_bytes;
  environment.numa_nodes = std::max(1, static_cast<int>(machine.topology.nodes.size()));
  return environment;
}

std::string missing_here(std::string_view target) {
  if (target.empty()) return "";
  for (const TargetFacts& facts : targets_of(this_cpu()))
    if (facts.name == target) return facts.usable ? "" : facts.reason;
  return "no target of this build";
}

Environment Environment::probe() { return environment_of(read_machine(), &bf16_dot_is_faster); }

}  // namespace motet
