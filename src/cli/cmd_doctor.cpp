// SPDX-License-Identifier: Apache-2.0
// motet doctor: what this machine is, what Motet takes of it, and what to change.
#include <fmt/format.h>

#include <algorithm>

#include "cli.h"
#include "output.h"

namespace motet::cli {
namespace {

struct Options {
  bool json = false, measure = false;
  int threads = 0;
} options;

std::string read_text(const MeasuredRates& rates, const std::vector<CacheFacts>& caches) {
  if (rates.read_bytes_per_second <= 0) return "not measured";
  std::int64_t last_level = 0;
  for (const CacheFacts& cache : caches) last_level = std::max(last_level, cache.bytes);
  return fmt::format("{:.1f} GB/s, over {}{}", rates.read_bytes_per_second / 1e9, bytes_text(rates.read_bytes),
                     rates.read_may_be_cached ? fmt::format(", of which the last-level cache of {} may hold much; a guest of a host rarely has it to itself", bytes_text(last_level)) : "");
}

std::string rate_text(double rate, const char* unit) { return rate > 0 ? fmt::format("{:.1f} {}", rate / 1e9, unit) : "not measured"; }

Json to_json(const MachineFacts& facts, const MeasuredRates* rates) {
  const Environment& environment = facts.environment;
  Json document = {{"schema", "motet.doctor/1"}, {"version", environment.version}, {"model", facts.model_name}, {"processor", environment.processor}};
  for (const TargetFacts& target : environment.targets) {
    document["targets"].push_back({{"name", target.name}, {"compiled", target.compiled}, {"usable", target.usable}, {"reason", target.reason}});
  }
  document["arithmetic_ranking"] = environment.arithmetic_ranking;
  document["few_ranking"] = environment.few_ranking;
  document["ranking_evidence"] = environment.ranking_evidence;
  document["threads"] = {{"count", environment.threads}, {"reason", environment.threads_reason}, {"online", facts.processors_online},
                         {"affinity", facts.processors_in_affinity}, {"cgroup_quota", facts.cgroup_quota_processors}};
  document["memory"] = {{"total", facts.memory_total}, {"available", facts.memory_available}, {"cgroup_limit", facts.cgroup_memory_limit},
                        {"usable", environment.memory_bytes}, {"page", environment.page_bytes}, {"transparent_huge_pages", facts.transparent_huge_pages}};
  document["caches"] = Json::array();
  for (const CacheFacts& cache : facts.caches) {
    document["caches"].push_back({{"level", cache.level}, {"kind", cache.kind}, {"bytes", cache.bytes}, {"shared_by", cache.shared_by}});
  }
  document["numa"] = facts.numa;
  document["findings"] = Json::array();
  for (const Finding& finding : facts.findings) document["findings"].push_back({{"what", finding.what}, {"remedy", finding.remedy}});
  if (rates != nullptr) {
    document["rates"] = {{"threads", rates->threads}, {"read_bytes_per_second", rates->read_bytes_per_second}, {"read_bytes", rates->read_bytes}, {"read_may_be_cached", rates->read_may_be_cached}, {"f32_flops", rates->f32_flops},
                         {"bf16_flops", rates->bf16_flops}, {"bf16_tile_flops", rates->bf16_tile_flops}, {"int16_ops", rates->int16_ops}, {"int8_ops", rates->int8_ops}, {"seconds", rates->seconds}};
  }
  return document;
}

std::string to_text(const MachineFacts& facts, const MeasuredRates* rates) {
  const Environment& environment = facts.environment;
  std::string text = fmt::format("{}\n  {} ({})\n  threads: {} ({})\n", bold("Processor"), facts.model_name, environment.processor, environment.threads, environment.threads_reason);
  for (const CacheFacts& cache : facts.caches) {
    text += fmt::format("  L{} {}: {}, shared by {}\n", cache.level, cache.kind, bytes_text(cache.bytes), cache.shared_by);
  }
  for (const std::string& node : facts.numa) text += "  " + node + "\n";
  Table targets({"target", "compiled", "usable", "chosen", "why"});
  bool chosen = false;
  for (const TargetFacts& target : environment.targets) {
    const bool takes = !chosen && target.compiled && target.usable;
    chosen = chosen || takes;
    targets.row({target.name, target.compiled ? "yes" : "no", target.usable ? "yes" : "no", takes ? "chosen" : "", target.reason});
  }
  text += fmt::format("\n{}\n{}", bold("Targets"), targets.text());
  text += fmt::format("  arithmetic, fastest first: for many tokens {}; for few {} ({})\n", fmt::join(environment.arithmetic_ranking, ", "),
                      fmt::join(environment.few_ranking, ", "), environment.ranking_evidence);
  text += fmt::format("\n{}\n  total {}, available {}, Motet may use {}\n  cgroup limit: {}; pages of {}; transparent huge pages: {}\n", bold("Memory"),
                      bytes_text(facts.memory_total), bytes_text(facts.memory_available), bytes_text(environment.memory_bytes),
                      facts.cgroup_memory_limit > 0 ? bytes_text(facts.cgroup_memory_limit) : "none", bytes_text(environment.page_bytes), facts.transparent_huge_pages);
  if (rates != nullptr) {
    text += fmt::format("\n{} ({} threads, {})\n  memory read {}\n  fp32 FMA    {}\n  bf16 dot    {}\n  bf16 tile   {}\n  int16 dot   {}\n  int8 dot    {}\n", bold("Measured now"),
                        rates->threads, seconds_text(rates->seconds), read_text(*rates, facts.caches), rate_text(rates->f32_flops, "GFLOP/s"),
                        rate_text(rates->bf16_flops, "GFLOP/s"), rate_text(rates->bf16_tile_flops, "GFLOP/s"), rate_text(rates->int16_ops, "GOP/s"), rate_text(rates->int8_ops, "GOP/s"));
  }
  text += fmt::format("\n{}\n", bold("Findings"));
  for (const Finding& finding : facts.findings) text += fmt::format("  - {}\n    remedy: {}\n", finding.what, finding.remedy);
  if (facts.findings.empty()) text += "  none\n";
  return text;
}

int run() {
  const MachineFacts facts = machine_facts();
  MeasuredRates rates;
  if (options.measure) {
    RateWishes wishes;
    wishes.threads = options.threads > 0 ? options.threads : facts.environment.threads;
    wishes.budget_seconds = 2;
    const std::unique_ptr<RateProbe> probe = RateProbe::create(wishes.threads);
    rates = probe->measure(wishes);
    // Where fresh pages are slow to touch the buffer is not resident yet: each measurement goes on touching.
    for (int again = 0; again < 4 && rates.read_bytes_per_second <= 0; ++again) {
      wishes.compute = false;
      const MeasuredRates reads = probe->measure(wishes);
      rates.read_bytes_per_second = reads.read_bytes_per_second;
      rates.read_bytes = reads.read_bytes;
      rates.read_may_be_cached = reads.read_may_be_cached;
      rates.seconds += reads.seconds;
    }
  }
  const MeasuredRates* measured = options.measure ? &rates : nullptr;
  if (options.json) {
    print_json(to_json(facts, measured));
  } else {
    print(to_text(facts, measured));
  }
  return 0;
}

}  // namespace

Command add_doctor(CLI::App& root) {
  CLI::App* app = root.add_subcommand("doctor", "Facts of this machine, what Motet takes of it, and what to change");
  app->footer("Example:\n  motet doctor --measure");
  app->add_flag("--measure", options.measure, "Also measure read bandwidth and peak dot rates (about two seconds; more where fresh memory is slow)");
  app->add_option("--threads", options.threads, "Threads to measure with; 0 = all that this process may use")->check(whole_number(0))->capture_default_str();
  add_json(*app, options.json);
  return {app, run};
}

}  // namespace motet::cli
