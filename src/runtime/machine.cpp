// SPDX-License-Identifier: Apache-2.0
#include "runtime/machine.h"

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "base/thread_pool.h"
#include "kernels/probe.h"
#include "motet/error.h"
#include "runtime/read_buffer.h"
#include "runtime/weights_read.h"

namespace motet {
namespace {

double now() noexcept { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void find_thread_limits(const MachineReading& machine, std::vector<Finding>& findings) {
  const double quota = machine.cgroup.cpu_quota;
  if (quota > 0 && quota < machine.processors_in_affinity)
    findings.push_back({format_text("the control group %s allows %.6g processors of the %d in the affinity mask",
                                    machine.cgroup.cpu_group.c_str(), quota, machine.processors_in_affinity),
                        "raise its cpu.max (containers: --cpus), or accept fewer threads; a fraction of a processor is not used"});
  if (machine.processors_in_affinity < machine.processors_online)
    findings.push_back(
        {format_text("the affinity mask allows %d of %d processors", machine.processors_in_affinity, machine.processors_online),
         "start with taskset or numactl set wider, if that was not meant"});
}

void find_memory_limits(const MachineReading& machine, std::vector<Finding>& findings) {
  const std::int64_t limit = machine.cgroup.memory_limit;
  if (limit > 0 && limit < machine.memory_total)
    findings.push_back(
        {"the control group " + machine.cgroup.memory_group + " limits memory to " + bytes_text(limit) + " of " +
             bytes_text(machine.memory_total),
         "raise its memory.max (containers: --memory) when a plan does not fit; mapped weights count too while they are in use"});
  if (machine.transparent_huge_pages == "never")
    findings.push_back({"transparent huge pages are off: every 4 KiB of the workspace is a page of its own",
                        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)"});
}

void find_nodes(const MachineReading& machine, std::vector<Finding>& findings) {
  const auto& nodes = machine.topology.nodes;
  if (nodes.size() < 2) return;
  for (const NumaNode& node : nodes)
    if (node.processors > 0 && node.allowed_processors == 0)
      findings.push_back(
          {format_text("no processor of memory node %d may be used", node.id),
           format_text("bind memory as well (numactl --membind) so that nothing is read from node %d, or allow its processors",
                       node.id)});
  const auto used = std::count_if(nodes.begin(), nodes.end(), [](const NumaNode& node) { return node.allowed_processors > 0; });
  if (used > 1)
    findings.push_back(
        {format_text("threads run on %d memory nodes; mapped weights lie on the node that read them first", static_cast<int>(used)),
         "run one process per node (numactl --cpunodebind=N --membind=N)"});
}

}  // namespace

std::int64_t available_memory(const MachineReading& machine) noexcept {
  const std::int64_t free_of_group = machine.cgroup.memory_limit - machine.cgroup.memory_used;
  return machine.cgroup.memory_limit > 0 ? std::min(machine.memory_available, std::max<std::int64_t>(0, free_of_group))
                                         : machine.memory_available;
}

std::vector<Finding> findings_of(const MachineReading& machine, const Environment& environment) {
  std::vector<Finding> findings;
  if (!machine.forced_target.empty())
    findings.push_back({"MOTET_TARGET forces the target " + machine.forced_target, "unset MOTET_TARGET to take the best one"});
  for (const TargetFacts& target : environment.targets)
    if (target.compiled && !target.usable && !(target.name == "amx" && machine.cpu.vendor != "intel"))  // nobody else makes it
      findings.push_back(
          {"target " + target.name + " is not usable: " + target.reason,
           "nothing, when the processor has none of it; in a virtual machine pass the host's processor through (QEMU: -cpu host)"});
  find_thread_limits(machine, findings);
  find_memory_limits(machine, findings);
  find_nodes(machine, findings);
  return findings;
}

MachineFacts machine_facts() {
  const MachineReading machine = read_machine();
  MachineFacts facts;
  facts.environment = environment_of(machine, &bf16_dot_is_faster);
  facts.model_name = machine.cpu.model_name;
  facts.processors_online = machine.processors_online;
  facts.processors_in_affinity = machine.processors_in_affinity;
  facts.cgroup_quota_processors = machine.cgroup.cpu_quota;
  facts.cgroup_memory_limit = machine.cgroup.memory_limit;
  facts.memory_total = machine.memory_total;
  facts.memory_available = available_memory(machine);
  facts.transparent_huge_pages = machine.transparent_huge_pages;
  for (const CacheLevel& cache : machine.topology.caches)
    facts.caches.push_back({cache.level, cache.kind, cache.bytes, cache.shared_by});
  for (const NumaNode& node : machine.topology.nodes) facts.numa.push_back(text_of(node));
  facts.findings = findings_of(machine, facts.environment);
  return facts;
}

namespace {

class PooledProbe final : public RateProbe {
 public:
  explicit PooledProbe(int threads) : machine_(read_machine()), pool_(threads) {}

  MeasuredRates measure(const RateWishes& wishes) override {
    if (wishes.threads != pool_.threads() || !(wishes.budget_seconds > 0))
      throw Error(ErrorCode::invalid_argument,
                  format_text("this probe measures with %d threads and a budget above zero, not %d threads and %g seconds",
                              pool_.threads(), wishes.threads, wishes.budget_seconds));
    const double begin = now();
    MeasuredRates rates;
    rates.threads = wishes.threads;
    if (wishes.compute) measure_dots(rates, (wishes.bandwidth ? 0.35 : 1) * wishes.budget_seconds);
    if (wishes.bandwidth) measure_read(rates, wishes.resident, begin + wishes.budget_seconds);
    rates.seconds = now() - begin;
    return rates;
  }

 private:
  // Each rate is visited several times, apart, and the best visit counts: a worker that the system took away is back by the next.
  void measure_dots(MeasuredRates& rates, double seconds) {
    constexpr int kVisits = 3;
    const auto visit = [&](DotKind kind, double& best) {
      best = std::max(best, measure_dot_rate(pool_, kind, machine_.cpu, seconds / (5 * kVisits)));
    };
    for (int i = 0; i < kVisits; ++i) {
      visit(DotKind::f32_fma, rates.f32_flops);
      visit(DotKind::bf16_dot, rates.bf16_flops);
      visit(DotKind::bf16_tile, rates.bf16_tile_flops);
      visit(DotKind::int16_dot, rates.int16_ops);
      visit(DotKind::int8_dot, rates.int8_ops);
    }
  }

  /// Leaves 0 when there is nothing to read: no room for the buffer, too little of it resident yet (later measurements go on
  /// touching), or spans of a few bytes.
  void measure_read(MeasuredRates& rates, std::vector<ByteSpan> resident, double deadline) {
    if (resident.empty()) {
      const double begin = now();
      buffer_.touch(pool_, begin + 0.7 * (deadline - begin));
      resident.push_back({buffer_.data(), buffer_.readable()});
    }
    const std::vector<ByteSpan> pieces = read_pieces(joined(std::move(resident)), pool_.threads());
    const double left = deadline - now();
    if (pieces.empty() || left <= 0) return;
    for (const ByteSpan& piece : pieces) rates.read_bytes += piece.bytes;
    rates.read_may_be_cached = may_be_cached(rates.read_bytes, last_level_cache(machine_.topology));
    rates.read_bytes_per_second = measure_read_rate(pool_, pieces, machine_.cpu, left);
  }

  MachineReading machine_;
  ThreadPool pool_;
  ReadBuffer buffer_{read_buffer_wish(last_level_cache(machine_.topology), available_memory(machine_), machine_.page_bytes)};
};

}  // namespace

std::unique_ptr<RateProbe> RateProbe::create(int threads) {
  if (threads < 1)
    throw Error(ErrorCode::invalid_argument, format_text("rates are measured with at least one thread, not %d", threads));
  return std::make_unique<PooledProbe>(threads);
}

MeasuredRates measure_rates(const RateWishes& wishes) { return RateProbe::create(wishes.threads)->measure(wishes); }

}  // namespace motet
